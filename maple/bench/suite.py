"""The measurements of one run, in rounds, so that a busy neighbour disturbs all of them alike."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable

import attrs

from maple.bench.peer import Peer
from maple.bench.rig import Rig, Workload

_BEYOND_CACHES = 256 << 20
"""Weights of fewer bytes are not read from memory at every token."""

_HEAD = "head alone"

_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


@attrs.frozen(kw_only=True)
class Line:
    """One measurement, in tokens a second: best of the rounds, the peer's, and what memory alone allows."""

    name: str
    ours: float
    peer: float | None = None
    limit: float | None = None
    rounds: tuple[float, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's."""
        return self.ours / self.peer if self.peer else None

    @property
    def share(self) -> float | None:
        """Of the limit, from 0 to 1."""
        return self.ours / self.limit if self.limit else None


@attrs.frozen(kw_only=True)
class Report:
    """What a run found. Seconds, bytes, and bytes a second."""

    model: str
    path: str
    activations: str
    threads: int
    load_seconds: float
    mapped: bool
    weight_bytes: int
    peak_resident_bytes: int
    read_bytes_per_second: float
    peer_path: str | None = None
    lines: tuple[Line, ...]


@attrs.define
class _Notes:
    """Values by name, in the order of the first."""

    tell: Callable[[str], None]
    values: dict[str, list[float]] = attrs.Factory(dict)

    def add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)
        self.tell(f"{name}: {value:.1f}")

    def best(self, name: str) -> float | None:
        return max(self.values[name]) if name in self.values else None


def measure(
    rig: Rig, work: Workload, *, peer: Peer | None, load_seconds: float, tell: Callable[[str], None]
) -> Report:
    """Run all rounds; ``tell`` gets a line for each measurement as it is made."""
    ours, theirs, rates = _Notes(tell), _Notes(lambda line: tell(f"peer {line}")), []
    rig.fill_batch()
    for _ in range(work.rounds):
        rates.append(rig.read_rate())
        _decode_and_prefill(rig, work, peer, ours, theirs)
        rates.append(rig.read_rate())
        ours.add(_HEAD, rig.head())
        ours.add(_batch_name(work), rig.batch())
        if peer is not None:
            theirs.add(_batch_name(work), peer.batch(work.batch, work.batch_context, work.decoded))
    loaded = rig.loaded
    return Report(
        model=loaded.folder.name,
        path=rig.model.path,
        activations=rig.model.activations,
        threads=rig.model.threads,
        load_seconds=load_seconds,
        mapped=loaded.packed,
        weight_bytes=loaded.layout.nbytes,
        peak_resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT,
        read_bytes_per_second=max(rates),
        peer_path=peer.path if peer else None,
        lines=tuple(_lines(rig, work, ours, theirs, max(rates))),
    )


def _decode_and_prefill(rig: Rig, work: Workload, peer: Peer | None, ours: _Notes, theirs: _Notes) -> None:
    """Prompts in turn; decoding follows the prompt that its context is as long as."""
    for tokens in sorted({*work.prompts, *work.contexts}):
        rate = rig.prefill(tokens)
        if tokens in work.prompts:
            ours.add(f"prefill {tokens}", rate)
        if tokens in work.contexts:
            ours.add(f"decode at {tokens}", rig.decode(tokens))
        if peer is None:
            continue
        prefill, decode = peer.generate(tokens, work.decoded if tokens in work.contexts else 1)
        if tokens in work.prompts:
            theirs.add(f"prefill {tokens}", prefill)
        if tokens in work.contexts:
            theirs.add(f"decode at {tokens}", decode)


def _lines(rig: Rig, work: Workload, ours: _Notes, theirs: _Notes, rate: float) -> list[Line]:
    limits: dict[str, float] = {}
    if rig.loaded.layout.nbytes >= _BEYOND_CACHES:
        limits = {f"decode at {context}": rate / rig.token_bytes(context) for context in work.contexts}
        limits[_HEAD] = rate / rig.head_bytes()
        limits[_batch_name(work)] = work.batch * rate / rig.batch_bytes()
    names = [*(f"decode at {n}" for n in work.contexts), *(f"prefill {n}" for n in work.prompts)]
    return [
        Line(
            name=name,
            ours=max(ours.values[name]),
            peer=theirs.best(name),
            limit=limits.get(name),
            rounds=tuple(ours.values[name]),
        )
        for name in (*names, _batch_name(work), _HEAD)
    ]


def _batch_name(work: Workload) -> str:
    return f"batch of {work.batch}"
