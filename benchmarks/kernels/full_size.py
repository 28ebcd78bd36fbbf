"""The full-size model on the native kernels, beside llama.cpp and the memory's own limit, in one run.

    python benchmarks/kernels/full_size.py MODEL [--gguf FILE --peer-python PYTHON] [--rounds 5] [--json OUT]

MODEL and FILE are what `make_random_maple.py mlx` and `gguf` write. Measurements take turns within a round, so that a
busy neighbour disturbs all alike; the best of the rounds is reported, and ratios are of bests. `limit` is the time that
memory alone would need for the bytes of a step, at the read rate measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from maple.kernels import ModelShape, NativeModel, StepSlice, available, read_checkpoint
from maple.kernels._library import default_library
from maple.kernels.native import ModelWeights

LONG, SHORT, BATCH = 4096, 128, 8
READ_BYTES = 1 << 30


class Ours:
    """The native model with room for one long sequence and a batch of short ones."""

    def __init__(self, folder: pathlib.Path, threads: int, activations: str) -> None:
        begun = time.perf_counter()
        self.shape, self.weights = read_checkpoint(folder, threads=threads)
        self.load_seconds = time.perf_counter() - begun
        blocks = LONG // 64 + 4 + BATCH * 6
        self.model = NativeModel(
            self.shape,
            self.weights,
            threads=threads,
            activations=activations,
            kv_blocks=blocks,
            max_tokens=1024,
        )
        self.long = np.arange(LONG // 64 + 4)
        self.short = [np.arange(self.long.size + 6 * i, self.long.size + 6 * (i + 1)) for i in range(BATCH)]
        self.rng = np.random.default_rng(0)
        self.logits = self.model.logits_buffer(BATCH)

    def slice(self, ids: Any, start: int, blocks: Any, logits: int) -> StepSlice:
        return StepSlice(tokens=ids, start=start, blocks=blocks, sliding_blocks=blocks, logits=logits)

    def prefill(self, tokens: int, blocks: Any = None, chunk: int = 512) -> float:
        """Tokens a second for a fresh prompt, its last logits included."""
        ids, blocks = self.rng.integers(0, 150000, tokens), self.long if blocks is None else blocks
        begun = time.perf_counter()
        for first in range(0, tokens, chunk):
            part = ids[first : first + chunk]
            self.model.step([self.slice(part, first, blocks, int(first + chunk >= tokens))])
        return tokens / (time.perf_counter() - begun)

    def decode(self, context: int, tokens: int) -> float:
        """Tokens a second of greedy decoding behind a context that is already in the cache."""
        token, begun = 5, time.perf_counter()
        for i in range(tokens):
            token = int(
                self.model.step([self.slice([token], context + i, self.long, 1)], out=self.logits)[0].argmax()
            )
        return tokens / (time.perf_counter() - begun)

    def batch(self, steps: int) -> float:
        """Tokens a second of eight sequences together."""
        tokens, begun = self.rng.integers(0, 150000, BATCH), time.perf_counter()
        for s in range(steps):
            parts = [self.slice([int(t)], SHORT + s, self.short[i], 1) for i, t in enumerate(tokens)]
            tokens = self.model.step(parts, out=self.logits).argmax(1)
        return steps * BATCH / (time.perf_counter() - begun)


def token_bytes(shape: ModelShape, weights: ModelWeights, context: int) -> int:
    """Bytes that one decoded token reads: dense parts, its experts, the head, and keys and values (f16)."""
    layers = 0
    for full, layer in zip(shape.full_layers, weights.layers, strict=True):
        experts = (layer.gate_up.data.size + layer.down.data.size) // shape.experts * shape.experts_per_token
        keys = context if full else min(context, shape.window)
        kv = keys * shape.kv_heads * shape.head_dim * 2 * 2
        layers += layer.qkv.data.size + layer.output.data.size + layer.router.data.size + experts + kv
    return layers + weights.head.data.size


def batch_bytes(shape: ModelShape, weights: ModelWeights) -> int:
    """Bytes of one step of the batch, with the experts that independent choices touch."""
    touched = shape.experts * (1 - (1 - shape.experts_per_token / shape.experts) ** BATCH)
    one = token_bytes(shape, weights, 0)
    experts = sum(
        (layer.gate_up.data.size + layer.down.data.size) / shape.experts for layer in weights.layers
    )
    return int(one + experts * (touched - shape.experts_per_token))


def read_rate(weights: ModelWeights, threads: int) -> float:
    """Bytes a second that `threads` read from memory: the experts of the first layers, which no cache holds."""
    library, best = default_library(), 0.0
    for layer in weights.layers[:4]:
        data = layer.gate_up.data
        begun = time.perf_counter()
        library.maple_read_all(data.ctypes.data, data.size, threads)
        best = max(best, data.size / (time.perf_counter() - begun))
    return best


class Peer:
    """The peer in its own process."""

    def __init__(self, python: str, gguf: pathlib.Path, threads: int) -> None:
        worker = pathlib.Path(__file__).with_name("peer_worker.py")
        command = [python, str(worker), str(gguf), str(threads), str(LONG + 256), "1"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        if self.process.stdin is None or self.process.stdout is None:
            raise SystemExit("the peer has no pipes")
        self.questions, self.answers = self.process.stdin, self.process.stdout
        self.read()
        self.rng = np.random.default_rng(1)

    def read(self) -> dict[str, float]:
        line = self.answers.readline()
        if not line:
            raise SystemExit("the peer ended")
        answer: dict[str, float] = json.loads(line)
        return answer

    def ask(self, **question: object) -> dict[str, float]:
        self.questions.write(json.dumps(question) + "\n")
        self.questions.flush()
        return self.read()

    def ids(self, count: int) -> list[int]:
        return [int(i) for i in self.rng.integers(0, 150000, count)]

    def close(self) -> None:
        self.questions.close()
        self.process.wait(30)


def measure(ours: Ours, peer: Peer | None, options: argparse.Namespace) -> dict[str, list[float]]:
    results: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        results.setdefault(name, []).append(value)
        print(f"  {name} {value:.1f}", file=sys.stderr, flush=True)

    for blocks in ours.short:
        ours.prefill(SHORT, blocks)
    peer_long = peer.ids(LONG) if peer else []
    for round_ in range(options.rounds):
        note("read GB/s", read_rate(ours.weights, options.threads) / 1e9)
        ours.prefill(SHORT)
        note("ours decode@128", ours.decode(SHORT, options.tokens))
        if peer:
            got = peer.ask(ids=peer.ids(SHORT), n_predict=options.tokens, cache=False)
            note("peer decode@128", got["predicted_per_second"])
            note("peer prefill 128", got["prompt_per_second"])
        note("ours prefill 128", ours.prefill(128))
        note("read GB/s", read_rate(ours.weights, options.threads) / 1e9)
        note("ours batch 8", ours.batch(16))
        note("ours decode@128", ours.decode(SHORT, options.tokens))
        note("ours prefill 512", ours.prefill(512))
        if peer:
            note(
                "peer prefill 512", peer.ask(ids=peer.ids(512), n_predict=1, cache=False)["prompt_per_second"]
            )
        if round_ < options.long_rounds:
            note("ours prefill 4096", ours.prefill(LONG))
            note("ours decode@4096", ours.decode(LONG, 16))
            if peer:
                got = peer.ask(ids=peer_long, n_predict=16, cache=True)
                if got["prompt_n"] > LONG // 2:
                    note("peer prefill 4096", got["prompt_per_second"])
                note("peer decode@4096", got["predicted_per_second"])
            note("ours decode@4096", ours.decode(LONG, 16))
    return results


def table(
    ours: Ours, results: dict[str, list[float]], options: argparse.Namespace
) -> Iterator[tuple[str, Any]]:
    best = {name: max(values) for name, values in results.items()}
    rate = best["read GB/s"] * 1e9
    limits = {
        "decode@128": rate / token_bytes(ours.shape, ours.weights, SHORT),
        "decode@4096": rate / token_bytes(ours.shape, ours.weights, LONG),
        "batch 8": BATCH * rate / batch_bytes(ours.shape, ours.weights),
    }
    print(
        f"\npath {ours.model.path}, {options.threads} threads, {options.activations}, read {rate / 1e9:.1f} GB/s"
    )
    print(f"{'':16}{'ours':>9}{'peer':>9}{'ratio':>7}{'limit':>8}{'share':>7}")
    for name in ("decode@128", "decode@4096", "batch 8", "prefill 128", "prefill 512", "prefill 4096"):
        mine, theirs, limit = best.get(f"ours {name}"), best.get(f"peer {name}"), limits.get(name)
        if mine is None:
            continue
        ratio = f"{mine / theirs:7.2f}" if theirs else f"{'':7}"
        share = f"{limit:8.1f}{mine / limit:7.0%}" if limit else ""
        print(f"{name:16}{mine:9.1f}{theirs or float('nan'):9.1f}{ratio}{share}")
        yield name, {"ours": mine, "peer": theirs, "limit": limit}
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"batch of 8 / single {best['ours batch 8'] / best['ours decode@128']:.2f}")
    print(f"load {ours.load_seconds:.1f} s, peak resident {rss:.2f} GB")
    yield "load_seconds", ours.load_seconds
    yield "peak_rss_gb", rss
    yield "read_gb_s", rate / 1e9
    yield "rounds", results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--gguf", type=pathlib.Path)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--activations", default="int8x2", choices=["fp32", "int8", "int8x2"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--long-rounds", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    print(available(), file=sys.stderr)
    ours = Ours(options.model, options.threads, options.activations)
    peer = Peer(options.peer_python, options.gguf, options.threads) if options.gguf else None
    results = measure(ours, peer, options)
    if peer:
        peer.close()
    report = dict(table(ours, results, options))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
