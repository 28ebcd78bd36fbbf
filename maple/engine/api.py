"""The engine's face: what a turn hands in and what comes back. No torch, no HTTP words.

Everything here is used on the event loop's thread unless a docstring says otherwise.
"""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator, Mapping
from typing import Literal, Protocol

import attrs

from maple.engine.constraint import Grammar
from maple.engine.loading import LoadingGauge
from maple.engine.scores import Score
from maple.engine.stats import EngineStats, JobStatus, SessionLoaded, SessionManifest
from maple.engine.step_clock import StepClock
from maple.engine.thinking import ThinkingLimits

EngineStatus = Literal["loading", "ok", "error"]
StopReason = Literal["stop", "length"]


@attrs.frozen(kw_only=True)
class Sampling:
    """How the next id is chosen.

    ``temperature`` ≥ 0 (0 is greedy), ``top_p`` in (0, 1], ``top_k`` ≥ 0 (0 is off),
    ``repetition_penalty`` > 0 (1 is off; over prompt and output ids, as in Transformers). ``seed`` None
    draws a fresh one. ``presence`` and ``frequency`` are taken off the logits of output ids, once and for each
    time. ``bias`` has distinct ids with what is added to their logits; from −100 down an id is banned. ``min_p`` in
    [0, 1] is relative to the likeliest id.

    Neither EOS nor ``stop_ids``, which end the text as EOS does, are sampled before ``min_tokens`` ids, and with
    ``ignore_eos`` EOS never is. Choices of one request draw apart: by the pair of the seed and ``choice``.
    """

    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 20
    repetition_penalty: float = 1.0
    seed: int | None = None
    presence: float = 0.0
    frequency: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    min_p: float = 0.0
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    choice: int = 0


@attrs.frozen(kw_only=True)
class ConversationEnd:
    """How a conversation ends: its last message (or the raw prompt), and how many tool results it holds."""

    text: str = ""
    from_tool: bool = False
    tool_results: int = 0


def _not_empty(_job: object, _field: object, ids: tuple[int, ...]) -> None:
    if not ids:
        raise ValueError("a job needs a prompt of at least one id")


@attrs.frozen(kw_only=True)
class Job:
    """One sequence to generate. ``prompt_ids``, one at least, fit the window with room for ``max_tokens`` ≥ 1.

    ``stop``: strings that end the text, cut at the earliest match in the raw stream, or in what follows the first
    ``stop_behind``. ``owner`` names the
    key that asked: state is never shared between owners. ``subject`` is the last user message (or the raw
    prompt); only the scripted engine reads it and ``end``. ``timeout`` in seconds, counted from the slot, ends
    the generation as ``length`` (0 is off). The text is held to ``grammar`` behind the first
    ``grammar_behind`` in it, or from its beginning. ``thinking`` bounds the reasoning that the prompt left open.
    ``scores`` asks for every id's log probability, and for so many of the likeliest beside it.
    ``echo`` puts the prompt in front of the text, its ids' scores too; with it ``max_tokens`` may be 0.
    A ``sibling`` belongs to a request whose first job was taken: it waits for a slot as long as it takes.
    """

    request_id: str
    prompt_ids: tuple[int, ...] = attrs.field(validator=_not_empty)
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...] = ()
    stop_behind: str | None = None
    owner: str = ""
    session_id: str | None = None
    subject: str = ""
    end: ConversationEnd = ConversationEnd()
    timeout: float = 0.0
    grammar: Grammar | None = None
    grammar_behind: str | None = None
    thinking: ThinkingLimits | None = None
    scores: int | None = None
    sibling: bool = False
    echo: bool = False


@attrs.frozen
class Piece:
    """Text that is certain now, and where the newly sampled ids begin in it.

    ``text`` may be empty (ids whose text is held back). ``offsets`` has one entry per id sampled since the
    last piece, EOS excepted: the character offset, in the whole raw text, at which that id's text begins. Ids
    that a stop string cut off lie at or beyond the end of the text that was sent. ``scores`` are those ids', and
    before them those of an echoed prompt's, where the job asks for them.
    """

    text: str
    offsets: tuple[int, ...] = ()
    scores: tuple[Score, ...] = ()


@attrs.frozen(kw_only=True)
class Finish:
    """The end of a sequence. ``completion_tokens`` is every sampled id, EOS included; ``stop`` is the stop string that
    ended it; times in seconds.
    """

    reason: StopReason
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    stop: str | None = None
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


class Ticket(Protocol):
    """One submitted job. Iterate it once: Pieces, then exactly one Finish; or an EngineError is raised."""

    async def admitted(self) -> None:
        """Return when the job has its slot and the memory to begin. Raises EngineOverloaded after a queue timeout."""
        ...

    def status(self) -> JobStatus:
        """How far the job is."""
        ...

    def __aiter__(self) -> AsyncIterator[Piece | Finish]: ...

    def cancel(self) -> None:
        """Drop the job within one token, at any stage. Idempotent; nothing more is delivered afterwards."""
        ...

    def answer_now(self) -> None:
        """Close the job's reasoning block at its next token. Nothing happens where none is open."""
        ...


@attrs.frozen(kw_only=True)
class Served:
    """What is being served, once it is loaded. ``vocabulary`` is the number of ids that have a token.

    ``folder`` holds tokenizer.json, tokenizer_config.json and chat_template.jinja.
    ``generation_defaults`` has any of temperature, top_p, top_k. ``device``, ``dtype`` and ``attention``
    are words for /health. ``parameters`` and ``file_bytes`` tell how large the model is, 0 where there is none.
    """

    folder: pathlib.Path
    vocabulary: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    generation_defaults: Mapping[str, float]
    device: str
    dtype: str
    attention: str
    load_seconds: float
    parameters: int = 0
    file_bytes: int = 0


class Engine(Protocol):
    """A model behind one executor thread (or a recording of one)."""

    @property
    def status(self) -> EngineStatus:
        """Loading until the model is there, error once it never will be."""
        ...

    @property
    def error(self) -> str | None:
        """One line once ``status`` is "error"."""
        ...

    @property
    def served(self) -> Served | None:
        """None until ``status`` is "ok"."""
        ...

    @property
    def loading(self) -> LoadingGauge:
        """How far the load is, while ``status`` is "loading"."""
        ...

    @property
    def steps(self) -> StepClock:
        """How long its thread takes for a step; any thread may look."""
        ...

    @property
    def slots(self) -> int:
        """How many jobs run at a time, once the model is there."""
        ...

    @property
    def draining(self) -> bool:
        """Whether new jobs are refused because the server stops."""
        ...

    def start(self) -> None:
        """Begin loading in the background; returns at once. Call on the running event loop."""
        ...

    async def loaded(self) -> None:
        """Return when ``status`` has left "loading"."""
        ...

    def submit(self, job: Job) -> Ticket:
        """Queue a job. Raises ModelLoading, ModelFailed, ShuttingDown or EngineOverloaded at once."""
        ...

    def count_cancelled(self) -> None:
        """A client left before its job could be submitted: count it with the cancelled ones."""
        ...

    def stats(self) -> EngineStats:
        """Counts as of now."""
        ...

    def jobs(self) -> tuple[JobStatus, ...]:
        """Every job: those that run, then those that wait, in the order of their turns."""
        ...

    async def save_session(self, owner: str, session_id: str) -> SessionManifest:
        """Save what is live of a session, between two steps. Raises SessionUnknown, SessionsFull or SessionBusy."""
        ...

    async def load_session(self, owner: str, session_id: str) -> SessionLoaded:
        """Make a saved session live. Raises SessionUnknown, SessionTampered, SessionMismatch or SessionsFull."""
        ...

    async def session_manifest(self, owner: str, session_id: str) -> SessionManifest:
        """What the last save was. Raises SessionUnknown or SessionTampered."""
        ...

    async def delete_session(self, owner: str, session_id: str) -> None:
        """Forget a session, live and saved. Raises SessionUnknown where there is neither."""
        ...

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - it reports instead of raising
        """Refuse new jobs, finish what runs or waits; after ``timeout`` seconds cancel the rest: False."""
        ...

    async def close(self) -> None:
        """Cancel everything, stop the thread and wait for it."""
        ...
