"""How many sequences run together where the setting leaves it to the memory."""

from __future__ import annotations

import pathlib

import pytest

from maple.choose_engine import model_loader
from maple.configure import BadSetting, configure
from maple.engine.cores import MOST_SLOTS, most_slots
from maple.native.library import Unavailable, available
from maple.settings import Settings

DEMO = pathlib.Path(__file__).parents[2] / "maple" / "demo"


def never() -> bool:
    return False


def test_the_level_decides_where_nothing_is_said() -> None:
    """1 at the reference level, the memory's word at the extended one; a number or auto wins at both."""
    assert Settings().slots == 1
    assert Settings(api_level="extended").slots is None
    assert Settings(max_batch="auto").slots is None
    assert Settings(api_level="extended", max_batch=3).slots == 3


def test_eight_on_two_cores_and_never_more_than_32() -> None:
    """More sequences than a core can feed only slow each other down."""
    assert [most_slots(cores) for cores in (1, 2, 8, 64)] == [4, 8, 32, MOST_SLOTS]


def test_the_setting_is_a_number_or_auto() -> None:
    """From 1 to 32; anything else is refused by name."""
    assert configure({"MAPLE_MAX_BATCH": "AUTO"}, {}).settings.max_batch == "auto"
    assert configure({}, {"max_batch": "4"}).settings.slots == 4
    for wrong in ("0", "33", "all"):
        with pytest.raises(BadSetting, match="from 1 to 32, or auto"):
            configure({"MAPLE_MAX_BATCH": wrong}, {})


@pytest.mark.skipif(isinstance(available(), Unavailable), reason="torch on a CPU runs one at a time")
def test_the_memory_decides() -> None:
    """As many as it holds at a useful context: few in little, as many as the cores feed in much."""

    def slots(kv_cache_mb: int) -> int:
        settings = Settings(
            demo=True, device="cpu", api_level="extended", kv_cache_mb=kv_cache_mb, torch_threads=2
        )
        return model_loader(settings)(never).slots

    assert slots(1024) == 8
    assert 1 <= slots(4) < 8


def test_torch_on_a_cpu_runs_one_at_a_time() -> None:
    """There a second sequence costs the first as much as it takes itself."""
    settings = Settings(demo=True, device="cpu", dtype="float32", api_level="extended", kv_cache_mb=64)
    assert model_loader(settings)(never).slots == 1
