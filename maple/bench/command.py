"""``maple bench``: measure this machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from maple.command import Command, CommandParser, agreed, home_path, positive
from maple.configure import cache_folder
from maple.errors import CommandFailed
from maple.settings import Settings

if TYPE_CHECKING:
    from maple.bench.peer import Peer
    from maple.bench.rig import Workload
    from maple.native.weights import NativeWeights

_ALL_PATHS = "all"
_EPILOG = """\
Without MODEL a full-size one of random weights is written once (5.3 GB) below --folder. The limit beside a
value is what memory alone allows, at the read rate measured in the same run. --peer needs llama.cpp:
python3 -m venv ENV && ENV/bin/pip install xllamacpp gguf, then --peer --peer-python ENV/bin/python."""


def _bench(given: argparse.Namespace) -> int:
    """Measure, print the table, write JSON where it was asked for."""
    from maple.bench.random_checkpoint import BenchFailed  # noqa: PLC0415 -- numpy: only for this
    from maple.checkpoint.errors import LoadError  # noqa: PLC0415
    from maple.native.library import KernelError, Unavailable, available  # noqa: PLC0415

    kernels = available()
    if isinstance(kernels, Unavailable):
        raise CommandFailed(f"the native kernels are what is measured: {kernels.reason}")
    if given.path not in (None, _ALL_PATHS, *kernels.paths):
        raise CommandFailed(f"--path {given.path}: this processor runs {', '.join(kernels.paths)}")
    try:
        return _measure(given)
    except (BenchFailed, LoadError, KernelError) as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        raise CommandFailed(f"{error.filename or 'the disk'}: {error.strerror}") from error


def _declare(parser: CommandParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help="folder of any spelling, pack, or hub id")
    parser.add_argument("--quick", action="store_true", help="the embedded model and small numbers")
    parser.add_argument("--short", action="store_true", help="leave out contexts and prompts of 4096 tokens")
    parser.add_argument("--threads", type=positive, help="the physical cores by default")
    parser.add_argument("--activations", default="int8x2", choices=("int8", "int8x2", "fp32"))
    parser.add_argument(
        "--path", help="the kernels of an instruction set: scalar, avx2, …, or all; the best by default"
    )
    parser.add_argument("--rounds", type=positive, help="the best of so many is reported (3)")
    parser.add_argument("--json", type=home_path, metavar="FILE", help="write everything there")
    parser.add_argument("--folder", type=home_path, help="where random models are kept; the cache folder")
    parser.add_argument("--peer", action="store_true", help="measure llama.cpp in turn")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python with xllamacpp and gguf")
    parser.add_argument("--peer-model", type=home_path, help="its GGUF file, written where it is missing")


def _measure(given: argparse.Namespace) -> int:
    from maple.bench.report import as_json, as_table  # noqa: PLC0415
    from maple.bench.rig import Rig, Workload  # noqa: PLC0415
    from maple.bench.suite import measure  # noqa: PLC0415
    from maple.engine.cores import physical_cores  # noqa: PLC0415

    work = Workload.quick() if given.quick else Workload()
    work = work.short() if given.short else work
    work = attrs.evolve(work, rounds=given.rounds or work.rounds)
    threads = given.threads or physical_cores()
    loaded, seconds = _load(given, threads)
    reports = []
    with _peer(given, loaded, work, threads) as peer:
        for path in _paths(given):
            rig = Rig(loaded, work, threads=threads, activations=given.activations, path=path)
            reports.append(measure(rig, work, peer=peer, load_seconds=seconds, tell=_tell))
            rig.model.close()
    sys.stdout.write("\n\n".join(as_table(report) for report in reports) + "\n")
    if given.json:
        given.json.write_text("\n".join(as_json(report) for report in reports) + "\n", encoding="utf-8")
    return 0


def _paths(given: argparse.Namespace) -> tuple[str | None, ...]:
    from maple.native.library import default_library, paths_of  # noqa: PLC0415

    return paths_of(default_library()) if given.path == _ALL_PATHS else (given.path,)


def _load(given: argparse.Namespace, threads: int) -> tuple[NativeWeights, float]:
    from maple.bench.random_checkpoint import write_random  # noqa: PLC0415
    from maple.choose_engine import DEMO_FOLDER  # noqa: PLC0415
    from maple.native.weights import NativeSource, load_weights  # noqa: PLC0415

    source = given.model or (str(DEMO_FOLDER) if given.quick else None)
    if source is None:
        folder = _folder(given) / "random-2bit"
        if not folder.exists() and not agreed(
            f"A random model of full size (5.3 GB) is written to {folder}. Go on?"
        ):
            raise CommandFailed(
                "nothing was written; --quick measures the embedded model, MODEL one that is here"
            )
        shown = iter(range(0, 101, 5))
        percent = [next(shown)]

        def progress(done: int, total: int) -> None:
            if total and done * 100 // total >= percent[0]:
                _tell(f"writing a random model: {percent[0]} %")
                percent[0] = next(shown, 101)

        source = str(write_random(folder, progress=progress))
    started = time.perf_counter()
    loaded = load_weights(
        NativeSource(source=source, threads=threads), progress=lambda _: None, cancelled=lambda: False
    )
    return loaded, time.perf_counter() - started


@contextlib.contextmanager
def _peer(
    given: argparse.Namespace, loaded: NativeWeights, work: Workload, threads: int
) -> Iterator[Peer | None]:
    from maple.bench.peer import Peer  # noqa: PLC0415

    if not given.peer:
        yield None
        return
    model = given.peer_model or _folder(given) / "random-tq2.gguf"
    model.parent.mkdir(parents=True, exist_ok=True)
    config = json.loads((loaded.folder / "config.json").read_text(encoding="utf-8"))
    _tell("starting the peer")
    # Its context is shared out among the slots, each of which takes the longest prompt.
    context = (work.longest + 64) * work.batch
    with Peer(given.peer_python, model, config, threads=threads, context=context, slots=work.batch) as peer:
        yield peer


def _folder(given: argparse.Namespace) -> pathlib.Path:
    folder: pathlib.Path | None = given.folder
    if folder is not None:
        return folder
    if (cache := cache_folder(Settings())) is None:
        raise CommandFailed("no home folder is known: say with --folder where models may be kept")
    return cache / "bench"


def _tell(line: str) -> None:
    sys.stderr.write(f"  {line}\n")
    sys.stderr.flush()


BENCH = Command(
    name="bench",
    help="measure decoding, prefill, batches, load and memory on this machine",
    run=_bench,
    declare=_declare,
    epilog=_EPILOG,
)
