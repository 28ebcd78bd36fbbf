"""The gauge of a load: what it is at, and when it should be through."""

from __future__ import annotations

from maple.engine.loading import Loading, LoadingGauge


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def told(gauge: LoadingGauge) -> tuple[Loading, int | None]:
    return gauge.now, gauge.seconds_left


def test_the_time_left_goes_by_the_phase_s_own_rate() -> None:
    """None before any byte, then whole seconds of at least 1; a new phase begins anew."""
    clock = Clock()
    gauge = LoadingGauge(clock)
    assert told(gauge) == (Loading(phase="load", done=0, total=0), None)
    gauge.report("download", 0, 1000)
    clock.now += 10
    gauge.report("download", 100, 1000)
    assert told(gauge) == (Loading(phase="download", done=100, total=1000), 90)
    gauge.report("download", 1000, 1000)
    assert told(gauge)[1] == 1
    gauge.report("packing", 1, 10**9)
    assert told(gauge)[1] is None
    clock.now += 1
    assert told(gauge)[1] == 3600
