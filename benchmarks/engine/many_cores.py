"""What a decoded token takes on more cores than are at hand: a model of its phases, as a share of the memory limit.

A phase takes what its bytes take at the machine's read rate, or, where that is longer, what the busiest thread's chunks
take at a thread's own; every fan-out and every layer's serial work come on top. Assumed: threads of one speed, one
memory node, nothing else running. Counts of chunks are the kernels' own; those of before are what they were capped at.

    python benchmarks/engine/many_cores.py PACK    # without one, the embedded model: shows that it runs, no more
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping

from maple.bench.rig import Rig, Workload
from maple.choose_engine import DEMO_FOLDER
from maple.native.model import KV_BLOCK_TOKENS, NativeModel
from maple.native.weights import NativeSource, NativeWeights, load_weights

MACHINES = {16: 200e9, 64: 400e9}  # bytes a second that so many threads read together
CAPPED = {
    "qkv": 48, "sliding attention": 4, "full attention": 4, "output": 32, "router": 4, "gate_up": 32, "down": 16,
    "head": 1 << 30,
}  # fmt: skip
FAN_OUTS = 6  # of a layer


def phase_bytes(rig: Rig, position: int) -> dict[str, tuple[int, float]]:
    """How often a token runs each phase, and the bytes of one run."""
    shape, parts = rig.loaded.shape, rig.loaded.layout.parts
    full, chosen = sum(shape.full_layers), shape.experts_per_token / shape.experts
    key = rig.model.kv_block_bytes(sliding=False) / KV_BLOCK_TOKENS / full
    dense = {
        name: (shape.layers, float(parts[f"layers.0.{name}"].nbytes)) for name in ("qkv", "output", "router")
    }
    experts = {
        name: (shape.layers, parts[f"layers.0.{name}"].nbytes * chosen) for name in ("gate_up", "down")
    }
    return {
        **dense,
        **experts,
        "full attention": (full, key * position),
        "sliding attention": (shape.layers - full, key * min(position, shape.window)),
        "head": (1, rig.head_bytes()),
    }


def token_seconds(
    work: Mapping[str, tuple[int, float]],
    chunks: Mapping[str, int],
    *,
    threads: int,
    rate: float,
    thread_rate: float,
) -> float:
    """Of all phases; ``rate`` and ``thread_rate`` in bytes a second."""

    def phase(name: str) -> float:
        times, size = work[name]
        busiest = math.ceil(chunks[name] / threads) / chunks[name]
        return times * max(size / rate, size * busiest / thread_rate)

    return sum(phase(name) for name in work)


def counted(loaded: NativeWeights, threads: int, position: int) -> dict[str, int]:
    """The kernels' chunks of a token's step."""
    with NativeModel(loaded.shape, loaded.weights, threads=threads, kv_blocks=1) as model:
        return model.phase_chunks(position)


def _decoding_seconds(rig: Rig) -> float:
    """Processor time, which neighbours disturb least."""
    begun = time.process_time()
    rig.decode(128)
    return time.process_time() - begun


def main() -> None:
    """Print a row for each number of threads, before and now."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default=str(DEMO_FOLDER))
    parser.add_argument("--position", type=int, default=4096)
    parser.add_argument("--path", help="the kernels of an instruction set; the best by default")
    parser.add_argument(
        "--fan-out-us", type=float, default=1.0, help="what threads take to begin and end a phase"
    )
    parser.add_argument("--serial-us", type=float, default=9.0, help="of a layer, on one thread")
    parser.add_argument("--serial-us-before", type=float, default=29.0)
    given = parser.parse_args()
    source = NativeSource(source=given.model, threads=1)
    loaded = load_weights(source, progress=lambda _: None, cancelled=lambda: False)
    short = Workload().short()
    rig = Rig(loaded, short, threads=1, activations="int8x2", path=given.path)
    rig.prefill(128)
    thread_rate = rig.token_bytes(128) * short.decoded / min(_decoding_seconds(rig) for _ in range(3))
    work = phase_bytes(rig, given.position)
    rig.model.close()
    layers, total = loaded.shape.layers, sum(times * size for times, size in work.values())
    print(f"a thread takes {thread_rate / 1e9:.1f} GB/s, a token {total / 1e6:.0f} MB")
    for threads, rate in MACHINES.items():
        now = counted(loaded, threads, given.position)
        for label, serial, chunks in (
            (
                "before",
                given.serial_us_before,
                {name: min(CAPPED[name], count) for name, count in now.items()},
            ),
            ("now", given.serial_us, now),
        ):
            seconds = token_seconds(work, chunks, threads=threads, rate=rate, thread_rate=thread_rate)
            seconds += layers * (serial + FAN_OUTS * given.fan_out_us) * 1e-6
            print(
                f"{threads:3} threads, {rate / 1e9:.0f} GB/s, {label:6}: {total / rate / seconds:4.0%} of the limit"
            )


if __name__ == "__main__":
    main()
