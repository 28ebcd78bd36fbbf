"""What a protocol is: wire → Ask on the way in, turn events → wire on the way out.

Adapters are stateless and shared; encoders and folds belong to one turn. No I/O, no threads.

There are three kinds, and an adapter is of the one whose members it has; ``registry`` checks that it has them
all, so that nothing else need ask (see ``kinds``). None of them needs a base class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, Protocol

import attrs
from maple_plugins.events import ContentDelta, ReasoningDelta

from maple_protocols.ask import Ask
from maple_protocols.errors import ErrorBody
from maple_protocols.timings import Timings

FinishReason = Literal["stop", "length", "tool_calls"]
ApiLevel = Literal["reference", "extended"]
StrictFields = Literal["auto", "true", "false"]
JsonObject = dict[str, object]


@attrs.frozen(kw_only=True)
class Usage:
    """Token counts of one turn, from the engine. ``completion_tokens`` includes EOS and the reasoning."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@attrs.frozen(kw_only=True)
class NumberedCall:
    """A tool call with the id (``call_…``) and index (from 0) that the turn gave it."""

    index: int
    id: str
    name: str
    arguments: str


@attrs.frozen(kw_only=True)
class Done:
    """The last event of every turn that did not fail. ``at`` is in Unix seconds."""

    finish: FinishReason
    usage: Usage
    at: int = 0
    timings: Timings | None = None
    stop: str | None = None
    """The stop string that ended the answer."""
    window: bool = False
    """Whether it was the window that cut the answer."""


TurnEvent = ReasoningDelta | ContentDelta | NumberedCall | Done


@attrs.frozen
class OfChoice:
    """An event of one of several answers; they interleave. Only an adapter whose Ask has several meets it.

    Each answer has a Done of its own. After the last of them comes the turn's, whose counts are those of all.
    """

    index: int
    event: TurnEvent


@attrs.frozen(kw_only=True)
class Identity:
    """Made once per turn: ``key`` is 32 hex characters for the protocol's id, ``created`` Unix seconds,
    ``model`` the name to echo; the sampling is what is used, whoever chose it.
    """

    key: str
    created: int
    model: str
    temperature: float = 1.0
    top_p: float = 1.0
    request_id: str = ""
    sign: Callable[[str], str] = lambda _: ""
    """This server's signature under a text, base64."""


@attrs.frozen(kw_only=True)
class Frame:
    """One event of a stream: ``data`` is a JSON value, or a string that goes out as it is (``[DONE]``)."""

    data: JsonObject | str
    event: str | None = None


@attrs.frozen(kw_only=True)
class Policy:
    """What the deployment decides about requests; fixed once the model is loaded.

    ``level`` is MAPLE_API_LEVEL: at "reference" what the reference refuses is refused, in its words.
    ``vocabulary`` is the number of ids that have a token: ids 0..vocabulary−1 are valid in a prompt.
    ``template_variables`` are the names that the chat template itself reads, beyond messages, tools and
    add_generation_prompt. ``session_header`` is the X-Session-Id of this request,
    ``headers`` are all that it came with but its keys, their names in lower case. ``counting`` is set where the prompt
    is only counted. ``aliases`` are further names of the model.
    """

    level: ApiLevel = "reference"
    strict_fields: StrictFields = "auto"
    vocabulary: int = 0
    template_variables: frozenset[str] = frozenset()
    include_reasoning: bool = True
    response_store: bool = False
    session_header: str | None = None
    headers: Mapping[str, str] = attrs.field(factory=dict)
    counting: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def extended(self) -> bool:
        """Whether requests that the reference refuses are served."""
        return self.level == "extended"

    def refuses_unknown(self, *, closed: bool) -> bool:
        """The deployment's word on unknown top-level fields; else only a ``closed`` protocol refuses them, and
        only at the reference level.
        """
        if self.strict_fields == "auto":
            return closed and not self.extended
        return self.strict_fields == "true"


@attrs.frozen(kw_only=True)
class ServedModel:
    """What the model listing tells. ``max_model_len`` is None while the weights load; ``aliases`` are further
    names, ``max_tokens`` the most that an answer can have, ``version`` the server's. ``parameters``, ``file_bytes`` and
    ``quantization``, in words, tell what it is; 0 and empty while the weights load.
    """

    id: str
    created: int
    max_model_len: int | None
    strict: bool
    aliases: tuple[str, ...] = ()
    max_tokens: int | None = None
    version: str = ""
    parameters: int = 0
    file_bytes: int = 0
    quantization: str = ""


class Encoder(Protocol):
    """Turn events → server-sent events. Called in order: opening, event…, (failure), closing.

    An encoder may have ``waiting() -> Sequence[Frame]``: frames that tell a client, after every ten seconds of
    silence, that its answer is under way. Without it a comment line is sent; with it the opening goes out
    before any wait for a slot. It may have ``progress(Progress) -> Sequence[Frame]``, which is called at most twice a
    second before the first event, and once right before that, where ``Ask.progress`` asks for it. It may have
    ``started(Progress) -> Sequence[Frame]``, called once: when the request has its slot and it is known how much of its
    prompt was cached; and ``ping(Progress) -> Sequence[Frame]``, whose frames stand in for the comment line.
    """

    def opening(self) -> Sequence[Frame]:
        """Frames before the first event."""
        ...

    def event(self, event: TurnEvent) -> Sequence[Frame]:
        """Frames of one event; for Done, those that end a good stream."""
        ...

    def failure(self, error: ErrorBody) -> Sequence[Frame]:
        """Frames in place of the rest of a turn that failed after the status line."""
        ...

    def closing(self) -> Sequence[Frame]:
        """The last frames of every stream, failed or not."""
        ...


class Fold(Protocol):
    """Turn events → the whole answer. ``body`` is valid after Done."""

    def event(self, event: TurnEvent) -> None:
        """Take the next event."""
        ...

    def body(self) -> JsonObject:
        """The whole answer."""
        ...


class GenerationAdapter(Protocol):
    """A protocol that generates: one POST route, and one that counts where ``counted`` names its answer.

    ``answers`` are the tables (see ``schema.answer_schema``) of what it sends, under "whole" and "event"; what
    is not listed is described as some object.
    """

    path: ClassVar[str]
    prompt_param: ClassVar[str]
    """The field that a too long prompt is blamed on."""
    request: ClassVar[type]
    """The body's field table, an attrs class (see ``rules``); the API's description is made from it."""
    closed: ClassVar[bool]
    """Whether the protocol refuses unknown top-level fields by itself (see ``Policy.refuses_unknown``)."""
    answers: ClassVar[Mapping[str, type]]
    counted: ClassVar[str | None]
    """The ``object`` of what POST to ``path``/input_tokens answers; without it (or None) there is no such route."""

    controlled: ClassVar[str | None]
    """The ``object`` of what POST to ``path``/ID/answer answers, which ends the reasoning of a running answer."""

    def structure(self, body: Mapping[str, object], policy: Policy) -> Ask:
        """Validate strictly, in the contract's field order. Raises RequestError."""
        ...

    def encoder(self, ask: Ask, identity: Identity) -> Encoder:
        """A fresh encoder for one turn."""
        ...

    def fold(self, ask: Ask, identity: Identity) -> Fold:
        """A fresh fold for one turn."""
        ...


class ListingAdapter(Protocol):
    """A protocol that tells about the served model: GET routes.

    ``paths`` are Tornado patterns with one group at most; ``answers`` are the tables of what each one sends.
    """

    paths: ClassVar[tuple[str, ...]]
    answers: ClassVar[Mapping[str, type]]

    def answer(self, served: ServedModel, wanted: str | None) -> JsonObject:
        """``wanted`` is the pattern's group, decoded. Raises RequestError."""
        ...


@attrs.frozen(kw_only=True)
class Kept:
    """An answer that was kept. ``items`` are all that came before it, earlier answers included; JSON only.

    ``created`` in Unix seconds.
    """

    id: str
    created: int
    items: tuple[JsonObject, ...]
    body: JsonObject


class KeepingAdapter(GenerationAdapter, Protocol):
    """A generation protocol whose answers can be kept: it sets ``Ask.keep`` and ``Ask.follows``.

    What was kept is shown to the key that asked for it. ``stored_path`` is answered to GET and DELETE,
    ``items_path`` to GET; both are Tornado patterns with one group, the id. ``answers`` has their tables too,
    and one under "deleted".
    """

    stored_path: ClassVar[str]
    items_path: ClassVar[str]
    stored_query: ClassVar[type]
    items_query: ClassVar[type]
    """The field tables of the two GETs' queries, whose values are strings or integers."""

    def continued(self, ask: Ask, earlier: Kept | None, found: Sequence[Kept]) -> Ask:
        """``ask`` with an earlier answer, and all that came before that, in front of its own input.

        ``earlier`` is what it follows, ``found`` those of its ``references`` that there are. Raises RequestError.
        """
        ...

    def kept(self, ask: Ask, body: JsonObject) -> Kept:
        """What is worth keeping of an answer; ``body`` is the fold's."""
        ...

    def stored(self, kept: Kept, query: Mapping[str, object]) -> JsonObject:
        """The answer to GET. Raises RequestError for a wrong query."""
        ...

    def deleted(self, wanted: str) -> JsonObject:
        """The answer to a DELETE that succeeded."""
        ...

    def page(self, kept: Kept, query: Mapping[str, object]) -> JsonObject:
        """One page of what came before the answer. Raises RequestError for a wrong query."""
        ...
