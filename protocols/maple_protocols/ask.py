"""The neutral form of one request: what every protocol turns its wire format into.

All classes are immutable. Client text in here has been validated (no lone surrogates, integers in int64) but
not made safe for a prompt: control strings are neutralised when the prompt is rendered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import attrs
from maple_plugins.parser import ToolSpec

Role = Literal["system", "user", "assistant", "tool"]
Ending = Literal["answer", "closed", "open"]
"""Behind the last message an answer begins; nothing follows it; or it stays open, for its text to go on."""


@attrs.frozen(kw_only=True)
class CalledTool:
    """A tool call of an earlier assistant turn.

    ``arguments`` is either the client's JSON text of an object (rendered as it is) or the object itself
    (rendered as JSON).
    """

    name: str
    arguments: str | Mapping[str, object]


@attrs.frozen(kw_only=True)
class Message:
    """One message. The role developer has become system, parts have been joined, no content has become ""."""

    role: Role
    content: str
    reasoning: str | None = None
    tool_calls: tuple[CalledTool, ...] = ()


@attrs.frozen(kw_only=True)
class Conversation:
    """A prompt to be rendered by the chat template.

    ``tools`` are the tool objects for the template, in the nested chat shape, already filtered by
    ``tool_choice``; ``tool_specs`` are the same tools as parsers see them. ``thinking`` None means the
    server's default. ``template_variables`` are further variables that the template itself reads. Where
    ``ending`` is "open", the last message is an assistant's without calls, and what goes on is its content, or its
    reasoning where it has no content.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, object], ...] = ()
    tool_specs: tuple[ToolSpec, ...] = ()
    thinking: bool | None = None
    ending: Ending = "answer"
    template_variables: Mapping[str, object] = attrs.field(factory=dict)


@attrs.frozen
class RawText:
    """A prompt that goes to the model untouched: control strings in it are control tokens."""

    text: str


@attrs.frozen
class RawIds:
    """A prompt given as token ids, each within the vocabulary."""

    ids: tuple[int, ...]


Prompt = Conversation | RawText | RawIds


@attrs.frozen(kw_only=True)
class SamplingWish:
    """Sampling as the request asked for it; None where it did not.

    ``temperature`` 0..2 (0 is greedy), ``top_p`` in (0, 1], ``top_k`` ≥ 0 (0 is off; −1 has become 0),
    ``repetition_penalty`` > 0, ``seed`` an int64. ``presence`` and ``frequency`` −2..2, ``bias`` pairs of an id and
    −100..100, ``min_p`` 0..1. ``stop_ids`` end the answer as the model's own end does; neither comes before
    ``min_tokens`` ids, and with ``ignore_eos`` the model's own never does.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float = 1.0
    seed: int | None = None
    presence: float = 0.0
    frequency: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    min_p: float = 0.0
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@attrs.frozen(kw_only=True)
class AnswerForm:
    """What the answer, behind the reasoning, has to be; ``param`` is the field that asked for it.

    ``value`` by ``kind``: nothing for any JSON object, a JSON Schema, a regular expression, the strings to choose from,
    a Lark grammar. ``spelt`` is the request's own object, for protocols that repeat it.
    """

    kind: Literal["object", "schema", "regex", "choice", "grammar"]
    param: str
    value: object = None
    spelt: Mapping[str, object] = attrs.field(factory=dict, eq=False)


@attrs.frozen(kw_only=True)
class ForcedCalls:
    """The answer has to be calls of the tools shown, one or more, or with ``single`` just one.

    Arguments are any object, those of the ``strict`` tools what their schema allows.
    """

    single: bool = False
    strict: frozenset[str] = frozenset()


@attrs.frozen(kw_only=True)
class Ask:
    """One request, whatever protocol it came in.

    ``model`` is the client's word (None where absent). ``max_tokens`` ≥ 1, or None, which leaves it to the server.
    ``stop`` holds 0–16 non-empty strings. ``echo`` carries protocol fields that only the protocol's own encoder reads.

    ``keep`` asks for the answer to be kept, and ``must_keep`` to fail where it cannot be. ``follows`` is the id
    of a kept one that this request goes on from, and ``items`` are what was sent, in the protocol's own form (see
    ``adapter.KeepingAdapter``).

    ``references`` are the ids of other kept answers that ``items`` refer into. ``call_forms`` says, by the name
    that the model knows, how a call goes out; like ``echo`` it is the protocol's own.

    ``extended`` asks for what the reference does otherwise: stop strings apply behind the reasoning, tool markup
    is text where no tool was offered, and a newline stays between texts around a call.

    ``progress`` asks a stream to tell how far the prompt is, ``timings`` every answer to tell where its time went.

    ``thinking_budget`` is the most tokens of reasoning, else it goes by ``effort``, a word that the server knows.

    ``scores`` asks for the log probability of every token, and of so many of the likeliest beside it.

    ``repeats_prompt`` puts a raw prompt in front of the answer, its scores too; ``max_tokens`` may then be 0.

    ``choices`` answers are wanted to the prompt, and to each of the ``further`` ones, in this order.

    ``ignored`` are the paths, without indices (``input[].image``), of what was sent and has no effect: the
    client is told in X-Maple-Ignored. Two requests that differ in nothing else are equal.
    """

    prompt: Prompt
    model: str | None = None
    sampling: SamplingWish = attrs.field(factory=SamplingWish)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    include_reasoning: bool | None = None
    session_id: str | None = None
    echo: Mapping[str, object] = attrs.field(factory=dict)
    keep: bool = False
    must_keep: bool = False
    follows: str | None = None
    references: tuple[str, ...] = ()
    items: tuple[Mapping[str, object], ...] = ()
    call_forms: Mapping[str, object] = attrs.field(factory=dict)
    extended: bool = False
    progress: bool = False
    timings: bool = False
    form: AnswerForm | None = None
    forced_calls: ForcedCalls | None = None
    thinking_budget: int | None = None
    effort: str | None = None
    scores: int | None = None
    repeats_prompt: bool = False
    choices: int = 1
    further: tuple[RawText | RawIds, ...] = ()
    ignored: tuple[str, ...] = attrs.field(default=(), eq=False)

    @property
    def answers(self) -> int:
        """How many answers there will be: several are told with ``OfChoice``."""
        return self.choices * (1 + len(self.further))
