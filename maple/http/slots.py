"""GET /v1/slots and /slots: what runs and what waits, without a word of its text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import attrs
from maple_protocols.adapter import Policy
from maple_protocols.answers import as_json
from maple_protocols.rules import Doc, Schema
from maple_protocols.schema import answer_schema

from maple.engine.stats import JobStatus
from maple.http.api_operation import JSON, Operation, Operations, json_of
from maple.http.application import Route
from maple.http.asking import check_engine
from maple.http.base import JsonHandler
from maple.http.wire import encode_json


@attrs.frozen(kw_only=True)
class SlotPrompt:
    """A prompt's tokens."""

    total: int
    cached: Annotated[int, Doc("Those whose state was reused.")]
    processed: Annotated[int, Doc("Those that are computed, reused ones included.")]


@attrs.frozen(kw_only=True)
class Slot:
    """A request of the asking key's."""

    id: Annotated[str, Doc("Its X-Request-Id.")]
    state: Literal["queued", "prefill", "decode"]
    age_s: Annotated[float, Doc("Seconds since it was taken.")]
    prompt: SlotPrompt
    generated: Annotated[int, Doc("Tokens so far.")]
    tokens_per_second: Annotated[float, Doc("Since the first of them.")]


@attrs.frozen(kw_only=True)
class Counts:
    """Requests by what they do."""

    running: int
    waiting: int


@attrs.frozen(kw_only=True)
class SlotList:
    """What runs and what waits, in the order of their turns."""

    object: Literal["list"]
    total_slots: Annotated[int, Doc("How many requests run at a time.")]
    data: Annotated[tuple[Slot, ...], Doc("The asking key's own requests.")]
    others: Annotated[Counts, Doc("Those of other keys.")]


@attrs.frozen(kw_only=True)
class ServerSlot:
    """A slot as llama-server shows it, with what is told of an own request in it."""

    id: int
    n_ctx: Annotated[int, Doc("The window in tokens.")]
    speculative: Literal[False]
    is_processing: bool
    request: Annotated[Slot | None, Doc("There only for a request of the asking key's.")] = None


class SlotsHandler(JsonHandler):
    """The requests that run or wait: one's own in detail, other keys' as counts."""

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """GET."""
        summary = "The requests that run or wait: one's own in detail, other keys' as counts."
        return {"get": Operation(summary=summary, tag="Operations", answers={200: json_of(SlotList)})}

    async def respond(self, *groups: str) -> None:
        """As of the last step."""
        engine = self.services.turns.engine
        jobs = engine.jobs()
        others = [job for job in jobs if job.owner != self.owner]
        waiting = sum(job.state == "queued" for job in others)
        answer = SlotList(
            object="list",
            total_slots=engine.slots,
            data=tuple(slot(job) for job in jobs if job.owner == self.owner),
            others=Counts(running=len(others) - waiting, waiting=waiting),
        )
        self.write(encode_json(as_json(answer)))


class ServerSlotsHandler(JsonHandler):
    """The slots as llama-server lists them."""

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """GET."""
        schema: Schema = {"type": "array", "items": answer_schema(ServerSlot)}
        summary = "The slots, as llama-server lists them."
        return {"get": Operation(summary=summary, tag="Operations", answers={200: {JSON: schema}})}

    def check(self, *groups: str) -> None:
        """How many there are is known once the model is."""
        check_engine(self.services.turns)

    async def respond(self, *groups: str) -> None:
        """As of the last step."""
        running = [job for job in self.services.turns.engine.jobs() if job.state != "queued"]
        self.write(encode_json(list(self._slots(running))))

    def _slots(self, running: Sequence[JobStatus]) -> Iterator[dict[str, Any]]:
        engine = self.services.turns.engine
        window = engine.served.max_model_len if engine.served else 0
        for number in range(engine.slots):
            job = running[number] if number < len(running) else None
            shown = slot(job) if job is not None and job.owner == self.owner else None
            yield as_json(
                ServerSlot(
                    id=number, n_ctx=window, speculative=False, is_processing=job is not None, request=shown
                )
            )


def slot(job: JobStatus) -> Slot:
    """A job as its owner sees it."""
    return Slot(
        id=job.request_id,
        state=job.state,
        age_s=round(job.seconds, 3),
        prompt=SlotPrompt(total=job.total, cached=job.cached, processed=job.processed),
        generated=job.generated,
        tokens_per_second=round(job.generated / job.decode_seconds, 3) if job.decode_seconds else 0.0,
    )
