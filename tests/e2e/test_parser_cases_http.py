"""Every parser case through the whole stack, cut in every way: the stream folds to the non-stream answer."""

from __future__ import annotations

import concurrent.futures
import json
import pathlib
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import pytest

CASES_FOLDER = pathlib.Path(__file__).parent.parent / "data" / "cases"
RANDOM_CUTS = 50
SEED = 20261130
CONNECTIONS = 3


@attrs.frozen(kw_only=True)
class Case:
    """One line of the handed cases, and where its recordings are in the script."""

    raw: Mapping[str, Any]
    parser: str
    number: int

    @property
    def id(self) -> str:
        return f"{self.parser}: {self.raw['name']}"

    def cuts(self) -> Iterator[list[str]]:
        """Whole, every split in two, each character alone, and seeded random cuts."""
        text = self.raw["raw"]
        yield [text]
        yield from ([text[:at], text[at:]] for at in range(1, len(text)))
        yield list(text)
        chance = random.Random(f"{SEED} {self.id}")  # noqa: S311 -- cuts, not secrets
        for _ in range(RANDOM_CUTS):
            places = sorted(chance.sample(range(1, len(text)), chance.randrange(1, min(len(text), 12))))
            yield [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]

    def word(self, cut: int) -> str:
        """What the user says to get one of the recordings."""
        return f"#{self.number}.{cut}#"


def _cases() -> list[Case]:
    cases: list[Case] = []
    for name in ("parser.jsonl", "parser_other.jsonl"):
        for line in (CASES_FOLDER / name).read_text(encoding="utf-8").splitlines():
            raw = json.loads(line)
            cases.append(Case(raw=raw, parser=raw.get("parser", "maple"), number=len(cases)))
    return cases


CASES = _cases()


@pytest.fixture(scope="module")
def servers(start_session_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """A server a parser, each with a script of all its cases' cuts."""
    folder = tmp_path_factory.mktemp("scripts")
    started = {}
    for parser in sorted({case.parser for case in CASES}):
        script = folder / f"{parser}.jsonl"
        with script.open("w", encoding="utf-8") as file:
            for case in CASES:
                if case.parser == parser:
                    for number, pieces in enumerate(case.cuts()):
                        line = {
                            "match": case.word(number),
                            "pieces": pieces,
                            "finish": case.raw["model_finish"],
                        }
                        file.write(json.dumps(line) + "\n")
        reasoning = "think" if parser == "maple" else "none"
        started[parser] = start_session_server(
            "--scripted", str(script), "--tool-parser", parser, "--reasoning-parser", reasoning
        )
    return started


def folded(frames: Sequence[Any]) -> dict[str, Any]:
    """A stream as the answer that it tells: deltas joined, calls by index, the finish reason last."""
    message: dict[str, Any] = {"role": None, "content": None}
    calls: list[Any] = []
    *chunks, done = frames
    assert done == "[DONE]"
    finish = None
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert finish is None, "a chunk after the finish reason"
        finish = choice["finish_reason"]
        for key, value in choice["delta"].items():
            if key == "tool_calls":
                assert [call.pop("index") for call in value] == list(
                    range(len(calls), len(calls) + len(value))
                )
                calls += value
            elif key == "role":
                message["role"] = value
            else:
                message[key] = (message.get(key) or "") + value
    if calls:
        message |= {"tool_calls": calls, "content": message["content"] or None}
    return {"message": message, "finish_reason": finish}


def told(choice: Mapping[str, Any]) -> dict[str, Any]:
    """What a case tells about a message, from an answer's choice."""
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls") or []]
    return {
        "reasoning": message.get("reasoning_content"),
        "content": message["content"],
        "tool_calls": [{"name": call["name"], "arguments": json.loads(call["arguments"])} for call in calls],
        "finish_reason": choice["finish_reason"],
    }


def without_ids(choice: Mapping[str, Any]) -> dict[str, Any]:
    """An answer's choice as far as it is the same for every request."""
    message = dict(choice["message"])
    if "tool_calls" in message:
        message["tool_calls"] = [{**call, "id": "call"} for call in message["tool_calls"]]
    return {"message": message, "finish_reason": choice["finish_reason"]}


def expected(case: Case) -> dict[str, Any]:
    raw = case.raw
    finish = "length" if raw["model_finish"] == "length" else "tool_calls" if raw["tool_calls"] else "stop"
    return {"reasoning": raw["reasoning"], "content": raw["content"], "tool_calls": raw["tool_calls"],
            "finish_reason": finish}  # fmt: skip


def check(server: Any, case: Case, numbers: Sequence[int]) -> None:
    """Ask for some of a case's recordings, streamed and not."""
    thinking = {"chat_template_kwargs": {"enable_thinking": case.raw["in_reasoning"]}}
    with server.client() as client:
        for number in numbers:
            whole = client.chat(case.word(number), **thinking).json["choices"][0]
            assert told(whole) == expected(case), number
            stream = folded(client.chat(case.word(number), stream=True, **thinking).events)
            assert without_ids(stream) == without_ids(whole), number


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_stream_folds_to_the_answer_however_it_is_cut(servers: Mapping[str, Any], case: Case) -> None:
    """Every cut of a recorded output gives the case's message, and the stream folds to the same."""
    numbers = range(sum(1 for _ in case.cuts()))
    server = servers[case.parser]
    with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as pool:
        lanes = [pool.submit(check, server, case, numbers[lane::CONNECTIONS]) for lane in range(CONNECTIONS)]
        for lane in lanes:
            lane.result()
