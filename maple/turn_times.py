"""Where a turn's time went, as its answer tells it."""

from __future__ import annotations

from maple_protocols.timings import Timings

from maple.engine.api import Finish


def spent(finish: Finish) -> Timings:
    """Where the time of a finished job went. Rates are the quotients of what stands beside them, 0 without a time."""
    computed = finish.prompt_tokens - finish.cached_tokens
    return Timings(
        queue_ms=_milliseconds(finish.queue_seconds),
        cache_n=finish.cached_tokens,
        prompt_n=computed,
        prompt_ms=_milliseconds(finish.prefill_seconds),
        prompt_per_second=_rate(computed, finish.prefill_seconds),
        predicted_n=finish.completion_tokens,
        predicted_ms=_milliseconds(finish.decode_seconds),
        predicted_per_second=_rate(finish.completion_tokens, finish.decode_seconds),
        draft_n=0,
        draft_accepted_n=0,
    )


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if seconds > 0 else 0.0
