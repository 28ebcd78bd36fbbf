"""Agents and SDKs run a tool loop of three steps to its end, as docs/clients.md sets them up."""

from __future__ import annotations

import json
import os
import pathlib
import re
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from maple_testing.client_wire import skeleton

if TYPE_CHECKING:
    from maple_testing.client_wire import Recorder, Sent

    from tests.clients.conftest import RunClient, StartScript

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "clients.md").read_text("utf-8")
SAMPLES = dict(re.findall(r"(?ms)^```\w+ (\S+)\n(.*?)^```$", PAGE))
ADDRESS = "127.0.0.1:8000"
RECORDED = ROOT / "tests" / "data" / "clients"


def loop(tool: str, *arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """A script: one call after another, then a word of the end."""
    calls = [json.dumps({"name": tool, "arguments": each}) for each in arguments]
    steps = [
        {
            "on": "any",
            "turn": turn,
            "pieces": [f"Step {turn}.", "</think>", f"\n\n<tool_call>\n{call}\n</tool_call>"],
        }
        for turn, call in enumerate(calls)
    ]
    return [*steps, {"on": "any", "pieces": ["I am through.", "</think>", "\n\nAll", " done."]}]


@attrs.frozen(kw_only=True)
class Agent:
    """A program with tools of its own: the sample that sets it up, and how its shell tool is called."""

    sample: str
    place: str
    tool: str
    first: dict[str, Any]
    second: dict[str, Any]
    environment: dict[str, str] = attrs.field(factory=dict)


AGENTS = {
    "codex": Agent(
        sample="config.toml",
        place=".codex/config.toml",
        tool="exec_command",
        first={"cmd": "echo on''e"},
        second={"cmd": "echo tw''o"},
    ),
    "opencode": Agent(
        sample="opencode.json",
        place="work/opencode.json",
        tool="bash",
        first={"command": "echo on''e", "description": "Echo"},
        second={"command": "echo tw''o", "description": "Echo"},
    ),
    "cline": Agent(
        sample="cline.sh",
        place="work/agent.sh",
        tool="run_commands",
        first={"commands": ["echo on''e"]},
        second={"commands": ["echo tw''o"]},
    ),
    "qwen": Agent(
        sample="qwen.sh",
        place="work/agent.sh",
        tool="run_shell_command",
        first={"command": "echo on''e", "is_background": False},
        second={"command": "echo tw''o", "is_background": False},
    ),
}
COMMANDS = {
    "codex": ("codex", "exec", "--skip-git-repo-check", "Run it."),
    "opencode": ("opencode", "run", "--model", "maple/maple-preview", "Run it."),
    "cline": ("bash", "-e", "agent.sh"),
    "qwen": ("bash", "-e", "agent.sh"),
}


def at(recorder: Recorder, sample: str) -> str:
    return SAMPLES[sample].replace(ADDRESS, f"127.0.0.1:{recorder.port}")


def generations(recorder: Recorder) -> list[Sent]:
    return [sent for sent in recorder.requests if sent.method == "POST"]


def check_recorded(name: str, recorder: Recorder) -> None:
    """Nothing is sent whose names are not on record; CLIENTS_RECORD=1 puts them there."""
    sent = [{"path": each.path, "body": skeleton(each.body)} for each in generations(recorder)]
    distinct = [each for index, each in enumerate(sent) if each not in sent[:index]]
    file = RECORDED / f"{name}.json"
    if os.environ.get("CLIENTS_RECORD"):
        file.write_text(json.dumps(distinct, indent=1) + "\n", "utf-8")
    recorded = json.loads(file.read_text("utf-8"))
    assert [each for each in distinct if each not in recorded] == []


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_runs_its_commands(
    start_script: StartScript, run_client: RunClient, clients: pathlib.Path, name: str
) -> None:
    """Two calls of its shell, whose output comes back to the model, and an answer; settings: base URL and key."""
    agent = AGENTS[name]
    recorder = start_script(loop(agent.tool, agent.first, agent.second))
    path = f"{clients / 'npm' / 'agents' / 'node_modules' / '.bin'}:{os.environ['PATH']}"
    printed = run_client(*COMMANDS[name], files={agent.place: at(recorder, agent.sample)}, PATH=path)
    assert "All done." in printed
    last = json.dumps(generations(recorder)[-1].body)
    assert "one" in last
    assert "two" in last
    check_recorded(name, recorder)


@pytest.mark.parametrize("provider", ["openai", "compatible"])
@pytest.mark.parametrize("mode", ["generate", "stream"])
def test_the_ai_sdk_runs_three_steps(
    start_script: StartScript, run_client: RunClient, clients: pathlib.Path, provider: str, mode: str
) -> None:
    """With OpenAI's own provider, which uses responses, and the compatible one; whole and streamed."""
    recorder = start_script(loop("look", {"place": "one"}, {"place": "two"}))
    sample = clients / "npm" / "ai-sdk" / "sample.mjs"  # packages are looked for beside it
    sample.write_text(at(recorder, "ai_sdk.mjs"), "utf-8")
    printed = run_client("node", str(sample), provider, mode)
    assert "All done." in printed
    assert "steps: 3" in printed
    thought = "I am through." if provider == "compatible" else "undefined"  # the other reads summaries alone
    assert f"thought: {thought}" in printed
    check_recorded(f"ai-sdk-{provider}-{mode}", recorder)


def looked(*places: str) -> list[dict[str, Any]]:
    """A script for an agent that hands tool results over in a user's words: a call of each place, then the answer."""
    calls = [{"name": "look", "arguments": {"place": place}} for place in places]
    calls.append({"name": "final_answer", "arguments": {"answer": "All done."}})
    seen = [{}, *({"match": f"{place} looks fine"} for place in places)]
    lines = [
        {"on": "any", **match, "pieces": ["Hm.", "</think>", f"<tool_call>{json.dumps(call)}</tool_call>"]}
        for match, call in zip(seen, calls, strict=True)
    ]
    return lines[::-1]


COMMAND_LINES = {
    "aider": ("aider.sh", {"work/hello.py": "pass\n"}, 'All done.\n\nhello.py\n```\nprint("hello")\n```\n'),
    "llm": ("llm.sh", {"llm/extra-openai-models.yaml": "extra-openai-models.yaml"}, "All done."),
    "lm-eval": (
        "lm_eval.sh",
        {
            "work/places.yaml": "places.yaml",
            "work/places.jsonl": '{"question": "Which place looks fine?", "answer": "All done."}\n',
        },
        "All done.",
    ),
}
"""Client → its sample, the files beside it (samples, or their text), and the answer."""


@pytest.mark.parametrize("name", COMMAND_LINES)
def test_a_command_line_client_runs(
    start_script: StartScript,
    run_client: RunClient,
    clients: pathlib.Path,
    tmp_path: pathlib.Path,
    name: str,
) -> None:
    """Aider edits a file, llm prints the answer, lm-eval scores it."""
    sample, beside, answer = COMMAND_LINES[name]
    recorder = start_script([{"on": "any", "pieces": ["Hm.", "</think>", answer]}])
    files = {place: at(recorder, text) if text in SAMPLES else text for place, text in beside.items()}
    printed = run_client(
        *("bash", "-e", "-c", at(recorder, sample)),
        files=files,
        PATH=f"{clients / 'python' / name / 'bin'}:{os.environ['PATH']}",
        LLM_USER_PATH=str(tmp_path / "home" / "llm"),
        HF_HUB_OFFLINE="1",
    )
    if name == "aider":
        assert (tmp_path / "home" / "work" / "hello.py").read_text("utf-8") == 'print("hello")\n'
    assert ("|exact_match|↑  |    1|" if name == "lm-eval" else "All done.") in printed
    check_recorded(name, recorder)


def test_python_clients_run(start_script: StartScript, run_client: RunClient, clients: pathlib.Path) -> None:
    """pydantic-ai's, LlamaIndex's and smolagents' agents call a tool twice; instructor and DSPy get what they parse."""
    call = json.dumps({"name": "Place", "arguments": {"place": "All done."}})
    field = "[[ ## answer ## ]]\nAll done.\n\n[[ ## completed ## ]]"
    scripts = {
        "pydantic-ai": loop("look", {"place": "one"}, {"place": "two"}),
        "llama-index": loop("look", {"place": "one"}, {"place": "two"}),
        "instructor": [{"on": "any", "pieces": [f"</think><tool_call>{call}</tool_call>"]}],
        "dspy": [{"on": "any", "pieces": [f"</think>{field}"]}],
        "smolagents": looked("one", "two"),
    }
    for name, script in scripts.items():
        recorder = start_script(script)
        python = clients / "python" / name / "bin" / "python"
        sample = at(recorder, f"{name.replace('-', '_')}_sample.py")
        files = {"work/sample.py": sample}
        printed = run_client(str(python), "sample.py", files=files, LITELLM_LOCAL_MODEL_COST_MAP="True")
        assert "All done." in printed
        check_recorded(name, recorder)
