"""``maple chat`` at a pseudo-terminal, with a real server that plays recordings behind it."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import pathlib
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from maple_testing.guard import HANG_GUARD, until
from maple_testing.wire import environment_without

pexpect = pytest.importorskip("pexpect", reason="drives the terminal")

CALLS = (
    '</think><tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
    '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
)
SCRIPT = (
    {"match": "slow", "pieces": ["Hm.", "</think>", *["word "] * 3000], "delay_ms": 20},
    {"match": "evil", "pieces": ["</think>", "a\x1b[2Jb"]},
    {"match": "marked", "pieces": ["</think>", "# Head\n\n- **one**\n", "- two\n\nlast `x"]},
    {"match": "tools", "pieces": ["I need both.", CALLS]},
    {"match": "", "pieces": ["Two plus two.", "</think>", "Four."]},
)
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("weather", "clock")]


@pytest.fixture
def script(tmp_path: pathlib.Path) -> pathlib.Path:
    file = tmp_path / "script.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in SCRIPT), encoding="utf-8")
    return file


@pytest.fixture
def environment(tmp_path: pathlib.Path) -> Mapping[str, str]:
    """Ours without the settings of a server."""
    clean = environment_without("MAPLE_")
    return {
        **clean,
        "MAPLE_CACHE_DIR": str(tmp_path),
        "TERM": "xterm",
        "HF_HUB_OFFLINE": "1",
        "PYTHONSAFEPATH": "1",
    }


@pytest.fixture
def server(
    scripted_server: Callable[..., contextlib.AbstractContextManager[int]],
    script: pathlib.Path,
    environment: Mapping[str, str],
    tmp_path: pathlib.Path,
) -> Iterator[int]:
    """The port of a server of one slot, behind the key ``sesame``."""
    settings = {
        "MAPLE_API_KEY": "sesame",
        "MAPLE_DRAIN_TIMEOUT": "0",
        "MAPLE_MAX_PROMPT_TOKENS": "500",
    }
    with scripted_server(
        script, "--max-batch", "1", environment={**environment, **settings}, folder=tmp_path
    ) as port:
        yield port


def stats(port: int) -> Mapping[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_GUARD)
    with contextlib.closing(connection):
        connection.request("GET", "/v1/stats?format=json", headers={"Authorization": "Bearer sesame"})
        counts: Mapping[str, Any] = json.loads(connection.getresponse().read())
        return counts


def wait_for_stats(port: int, **facts: int) -> None:
    until(lambda: facts.items() <= stats(port).items(), f"{facts} never came about")


Chat = Callable[..., Any]


@pytest.fixture
def chat(environment: Mapping[str, str], tmp_path: pathlib.Path) -> Iterator[Chat]:
    """``chat(*words, MAPLE_X="…")``: the command at a terminal, its greeting read."""
    with contextlib.ExitStack() as stack:

        def start(*words: str, greeted: bool = True, **variables: str) -> Any:
            child = pexpect.spawn(
                sys.executable,
                ["-m", "maple", "chat", *words],
                env={**environment, **variables},
                encoding="utf-8",
                timeout=HANG_GUARD,
                cwd=tmp_path,
            )
            stack.callback(child.close, force=True)
            if greeted:
                child.expect("/help lists")
                child.expect("> ")
            return child

        yield start


def leave(child: Any) -> int:
    """Ctrl-D at the prompt, which must be the next thing on the terminal; the exit code."""
    child.expect("> ")
    child.sendeof()
    child.expect(pexpect.EOF)
    child.close()
    return int(child.exitstatus)


def save(child: Any, file: pathlib.Path) -> list[dict[str, Any]]:
    """The history, by the command that keeps it."""
    child.sendline(f"/save {file.name}")
    child.expect("saved ")
    messages: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))["messages"]
    return messages


def test_a_conversation_in_a_terminal(chat: Chat, script: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """With a server of its own: reasoning folds and unfolds, escapes stay text, Ctrl-D leaves with 0."""
    child = chat("--scripted", str(script))
    child.sendline("sum")
    child.expect(r"thought for \d+\.\d s · 3 words \(/think")
    child.expect(r"Four\.")
    child.expect(r"\d+ tokens · [\d.]+ tokens/s")
    child.expect("> ")
    child.sendline("/think")
    child.expect(r"Two plus two\.")
    child.sendline("evil")
    child.expect_exact("a\\x1b[2Jb")
    child.expect("tokens/s")
    child.expect("> ")
    kept = save(child, tmp_path / "kept.json")
    assert [message["role"] for message in kept] == ["user", "assistant"] * 2
    assert kept[1] == {"role": "assistant", "content": "Four."}
    assert leave(child) == 0


def test_control_c_stops_an_answer_and_frees_the_slot(
    chat: Chat, server: int, tmp_path: pathlib.Path
) -> None:
    """The server's only slot is free at once, what was said is kept, and the conversation goes on."""
    child = chat("--url", f"http://127.0.0.1:{server}", MAPLE_API_KEY="sesame")
    child.sendline("slow")
    child.expect("word word")
    assert stats(server)["running"] == 1
    child.sendintr()
    child.expect("stopped")
    child.expect("> ")
    wait_for_stats(server, running=0, waiting=0, cancelled=1)
    child.sendline("sum")
    child.expect(r"Four\.")
    child.expect("tokens/s")
    child.expect("> ")
    kept = save(child, tmp_path / "kept.json")
    assert kept[1]["content"].startswith("word word")
    assert [message["content"] for message in kept[2:]] == ["sum", "Four."]
    assert leave(child) == 0


def test_control_c_at_the_prompt_drops_the_line(chat: Chat, server: int) -> None:
    """What was being typed is not sent."""
    child = chat("--url", f"http://127.0.0.1:{server}", MAPLE_API_KEY="sesame")
    child.send("slow")
    child.expect_exact("slow")
    for _ in range(100):  # readline notices a signal that came amid a keystroke with the next one
        child.sendintr()
        if child.expect(["Ctrl-D leaves", pexpect.TIMEOUT], timeout=5) == 0:
            break
    child.expect("> ")
    child.sendline("sum")
    child.expect(r"Four\.")
    assert leave(child) == 0


def test_calls_are_answered_by_hand(chat: Chat, server: int, tmp_path: pathlib.Path) -> None:
    """Each call asks for its result; with the last one the model goes on, here with further calls.

    The history holds all of it, in the form that the server takes.
    """
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS), "utf-8")
    child = chat("--url", f"http://127.0.0.1:{server}", "--tools", "tools.json", MAPLE_API_KEY="sesame")
    child.sendline("tools")
    child.expect_exact('→ weather({"city": "Oslo"})')
    child.expect_exact("→ clock({})")
    child.expect_exact("result of weather> ")
    child.sendline("minus four")
    child.expect_exact("result of clock> ")
    before = stats(server)["prompt_tokens"]
    child.sendline('{"hour": 6}')
    child.expect_exact("→ clock({})")
    child.expect_exact("result of weather> ")
    assert stats(server)["prompt_tokens"] - before > before
    user, asked, weather, clock, again = save(child, tmp_path / "kept.json")
    assert user == {"role": "user", "content": "tools"}
    assert asked["reasoning_content"] == "I need both."
    assert [call["function"] for call in asked["tool_calls"]] == [
        {"name": "weather", "arguments": '{"city": "Oslo"}'},
        {"name": "clock", "arguments": "{}"},
    ]
    ids = [call["id"] for call in asked["tool_calls"]]
    assert weather == {"role": "tool", "tool_call_id": ids[0], "content": "minus four"}
    assert clock == {"role": "tool", "tool_call_id": ids[1], "content": '{"hour": 6}'}
    assert {call["id"] for call in again["tool_calls"]}.isdisjoint(ids)
    assert leave(child) == 0


def test_a_result_that_could_not_be_sent_is_asked_for_again(chat: Chat, server: int) -> None:
    """The conversation is as it was before that line."""
    child = chat("--url", f"http://127.0.0.1:{server}", MAPLE_API_KEY="sesame")
    child.sendline("tools")
    child.expect_exact("result of weather> ")
    child.sendline("minus four")
    child.expect_exact("result of clock> ")
    child.sendline("1 9 7 " * 200)
    child.expect("refused with 400: ")
    child.expect_exact("result of clock> ")
    child.sendline("six")
    child.expect_exact("→ clock({})")
    child.expect_exact("result of weather")
    assert leave(child) == 0


def test_calls_can_be_left_without_results(chat: Chat, server: int, tmp_path: pathlib.Path) -> None:
    """/skip goes on with a history that still answers every call; without calls there is nothing to skip."""
    child = chat("--url", f"http://127.0.0.1:{server}", MAPLE_API_KEY="sesame")
    child.sendline("/skip")
    child.expect("no tool call waits")
    child.sendline("tools")
    child.expect_exact("result of weather> ")
    child.sendline("minus five")
    child.expect_exact("result of clock> ")
    child.sendline("/skip")
    child.expect("\n> ")
    child.sendline("sum")
    child.expect(r"Four\.")
    child.expect("tokens/s")
    child.expect("> ")
    kept = save(child, tmp_path / "kept.json")
    assert [message["role"] for message in kept] == ["user", "assistant", "tool", "tool", "user", "assistant"]
    assert [message["content"] for message in kept[2:4]] == ["minus five", "no result was given"]
    assert leave(child) == 0


def test_commands(chat: Chat, server: int, tmp_path: pathlib.Path) -> None:
    """/new forgets, /help lists, a wrong one is told; a file that is there is not written over."""
    child = chat("--url", f"http://127.0.0.1:{server}", MAPLE_API_KEY="sesame")
    child.sendline("/help")
    for name in (
        "/new",
        "/think",
        "/system",
        "/set",
        "/regenerate",
        "/skip",
        "/save FILE",
        "/load FILE",
        "/help",
    ):
        child.expect_exact(name)
    child.sendline("/think")
    child.expect("no reasoning yet")
    child.sendline("sum")
    child.expect("tokens/s")
    child.sendline("/new")
    child.expect("a new conversation")
    child.expect("> ")
    assert save(child, tmp_path / "kept.json") == []
    child.expect("> ")
    child.sendline("/save kept.json")
    child.expect("cannot save to kept.json: File exists")
    child.sendline("/save")
    child.expect("the name of a file is needed")
    child.sendline("/nwe")
    child.expect("/nwe is not a command, /help lists them")
    assert leave(child) == 0


def test_what_was_kept_is_gone_on_with(chat: Chat, server: int, tmp_path: pathlib.Path) -> None:
    """System text and all; an answer is given again in its place; what is no conversation changes nothing."""
    (tmp_path / "other.json").write_text('{"messages": [{"content": "no role"}]}')
    child = chat("--url", f"http://127.0.0.1:{server}", MAPLE_API_KEY="sesame")
    child.sendline("/system Be brief.")
    child.expect("Be brief")
    child.sendline("/regenerate")
    child.expect("there is no answer to give again")
    child.sendline('"""two')
    child.expect("… ")
    child.sendline('lines"""')
    child.expect("tokens/s")
    child.sendline("/regenerate")
    child.expect("tokens/s")
    kept = save(child, tmp_path / "kept.json")
    assert [(message["role"], message["content"]) for message in kept] == [
        ("system", "Be brief."),
        ("user", "two\nlines"),
        ("assistant", "Four."),
    ]
    child.sendline("/new")
    child.sendline("/load other.json")
    child.expect("other.json holds no conversation")
    child.sendline("/load kept.json")
    child.expect("2 messages from kept.json")
    assert save(child, tmp_path / "again.json") == kept
    child.sendline("/quit")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_calls_that_were_kept_still_wait(chat: Chat, server: int, tmp_path: pathlib.Path) -> None:
    """A conversation that ended in a call goes on with its result."""
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "tools"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    (tmp_path / "kept.json").write_text(json.dumps({"messages": messages}))
    child = chat("--url", f"http://127.0.0.1:{server}", MAPLE_API_KEY="sesame")
    child.sendline("/load kept.json")
    child.expect_exact("result of weather> ")
    child.sendline("cold")
    child.expect_exact("→ weather(")
    child.expect_exact("result of weather")
    assert leave(child) == 0


def test_fields_of_each_request_are_set(chat: Chat, server: int) -> None:
    """The server judges them; a field without a value is left out again."""
    child = chat("--url", f"http://127.0.0.1:{server}", MAPLE_API_KEY="sesame")
    child.sendline("/set stream false")
    child.expect("stream is the conversation's own")
    child.sendline("/set temperature 9")
    child.expect_exact("temperature 9")
    child.sendline("sum")
    child.expect("refused with 400: temperature")
    child.sendline("/set temperature")
    child.expect("the server's defaults")
    child.sendline("sum")
    child.expect(r"Four\.")
    assert leave(child) == 0


def test_markdown_is_drawn(chat: Chat, server: int) -> None:
    """Its marks become looks, and what was left open at the end is there."""
    child = chat("--url", f"http://127.0.0.1:{server}", MAPLE_API_KEY="sesame")
    child.sendline("marked")
    child.expect("tokens/s")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", child.before)
    assert re.search(r"Head.* • one.* • two.*last `x", shown, re.DOTALL)
    assert "**" not in shown.rpartition("Head")[2]
    assert leave(child) == 0


def test_a_server_that_runs_here_is_talked_to(chat: Chat, server: int) -> None:
    """Without --url and flags; its model is named. Nothing is started beside it."""
    child = chat(greeted=False, MAPLE_PORT=str(server), MAPLE_API_KEY="sesame")
    child.expect(rf"maple-preview \(demo\) at http://127\.0\.0\.1:{server}")
    child.sendline("sum")
    child.expect(r"Four\.")
    assert leave(child) == 0


def test_gigabytes_are_asked_for(chat: Chat, tmp_path: pathlib.Path) -> None:
    """Where none runs and the model is not here: no is the default, and nothing is fetched."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    child = chat(greeted=False, MAPLE_PORT=port, HF_HUB_CACHE=str(tmp_path / "hub"), MAPLE_DEVICE="cpu")
    child.expect_exact(
        "deepgrove/maple-preview-2bit-mlx (5.3 GB) is not on this machine yet. Fetch it? [y/N] "
    )
    child.sendline("")
    child.expect("nothing was fetched")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 1


class Loading(http.server.BaseHTTPRequestHandler):
    """A server whose model is on its way for its first answers."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        load = {"phase": "download", "done": self.asked * 1_000_000, "total": 9_000_000}
        health = {
            "status": "loading" if self.asked < 9 else "ok",
            "model": "m",
            "model_path": "p",
            "loading": load,
        }
        body = json.dumps(health).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: the test looks at the terminal."""


def test_what_is_waited_for_is_shown(chat: Chat) -> None:
    """How much of a model has been fetched, until it is there."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Loading) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        child = chat("--url", f"127.0.0.1:{server.server_port}", greeted=False)
        child.expect(r"fetching .*[\d.]+/9\.0 MB")
        child.expect(r"m \(p\) at ")
        assert leave(child) == 0
        server.shutdown()


def test_the_history_lies_below_the_home_folder(chat: Chat, server: int, tmp_path: pathlib.Path) -> None:
    """MAPLE_CACHE_DIR means to a conversation what it means to a server, its ~ too; only the user reads the lines."""
    home = tmp_path / "home"
    child = chat("--url", f"http://127.0.0.1:{server}", MAPLE_CACHE_DIR="~/kept", HOME=str(home))
    child.sendline("/think")
    child.expect("no reasoning yet")
    assert leave(child) == 0
    assert not (tmp_path / "~").exists()
    kept = home / "kept" / "chat-history"
    assert "/think" in kept.read_text("utf-8")
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_wrong_key_is_told_and_the_conversation_goes_on(
    chat: Chat, server: int, tmp_path: pathlib.Path
) -> None:
    """401 with the way out; the question is not kept."""
    child = chat("--url", f"http://127.0.0.1:{server}", MAPLE_API_KEY="wrong")
    child.sendline("sum")
    child.expect(r"maple: the server refused with 401: .*\(set MAPLE_API_KEY\)")
    child.expect("> ")
    assert save(child, tmp_path / "kept.json") == []
    assert leave(child) == 0


def test_an_unreachable_server_is_told(chat: Chat) -> None:
    """With the way out, at the first question."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    child = chat("--url", f"http://127.0.0.1:{port}")
    child.sendline("sum")
    child.expect(r"maple: no answer from 127\.0\.0\.1: .*refused; is it running\?")
    assert leave(child) == 0


def test_control_c_while_the_server_starts_ends_with_130(chat: Chat, script: pathlib.Path) -> None:
    """Before there is an answer to stop, it ends the command, and with it the server."""
    child = chat("--scripted", str(script), greeted=False)
    child.expect("starting a server")
    child.sendintr()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130


def run_chat(
    environment: Mapping[str, str], folder: pathlib.Path, typed: str, *words: str
) -> subprocess.CompletedProcess[str]:
    """The command away from a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "maple", "chat", *words],
        input=typed,
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=HANG_GUARD,
    )


def test_exit_codes_away_from_a_terminal(
    environment: Mapping[str, str], server: int, tmp_path: pathlib.Path
) -> None:
    """0 answered, 1 not answered, 2 wrong flags: one line each, so that scripts can tell. An answer comes bare."""
    url = f"http://127.0.0.1:{server}"
    (tmp_path / "tools.json").write_text("{}")
    answered = run_chat({**environment, "MAPLE_API_KEY": "sesame"}, tmp_path, "sum\n", "--url", url)
    assert (answered.returncode, answered.stderr) == (0, "")
    assert answered.stdout == "Four.\n"
    both = run_chat({**environment, "MAPLE_API_KEY": "sesame"}, tmp_path, "evil", "Say", "it:", "--url", url)
    assert both.stdout == "a\x1b[2Jb\n"
    for words, code, told in (
        (["--url", url], 1, "refused with 401"),
        (["--scripted", "nowhere.jsonl"], 1, "the server did not start: script nowhere.jsonl"),
        (["--tools", "tools.json", "--url", url], 1, "tools.json is not a JSON list"),
        (["--tools", "gone.json", "--url", url], 1, "gone.json cannot be read: No such file"),
        (["--prt", "1"], 2, "did you mean --port?"),
        (["--url", url, "--demo"], 2, "leave out --url, or it"),
        (["--url", "ftp://there"], 2, "must be an http or https address"),
    ):
        done = run_chat(environment, tmp_path, "sum\n", *words)
        assert done.returncode == code, words
        assert told in done.stderr
        assert done.stderr.count("\n") == 1
