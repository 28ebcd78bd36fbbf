"""The composition root: settings become parts, parts become one server, and signals end it."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import pathlib
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import platformdirs
import structlog
from maple_plugins.registry import reasoning_parser, tool_parser
from maple_protocols.registry import adapters

from maple import __version__, logs
from maple.configure import Configuration
from maple.engine.admission import QueueLimits
from maple.engine.api import Engine
from maple.engine.script import read_script
from maple.engine.scripted import ScriptedEngine, scripted_served
from maple.errors import MapleError
from maple.http.keys import Keyring
from maple.http.server import RunningServer, listen
from maple.http.services import HttpSettings, Services, model_label
from maple.metrics import Metrics
from maple.prompt import PromptEncoder, PromptPool
from maple.settings import Settings
from maple.store import SCHEME, ResponseStore
from maple.tracing import open_tracing
from maple.turn import ParserPair, TurnDefaults, Turns

if TYPE_CHECKING:
    from maple.engine.native_loader import KernelOptions
    from maple.engine.runner import Loader
    from maple.engine.session_files import SessionFiles
    from maple.kernels.native import ActivationMode
    from maple.model.load import LoadOptions
    from maple.native.load import NativeSource

log = structlog.get_logger(__name__)

DEMO_FOLDER = pathlib.Path(__file__).parent / "demo"


async def serve(configuration: Configuration) -> int:
    """Serve until a signal; returns 0 once drained.

    Raises MapleError (or a parser's or protocol's own error) where the server cannot start.
    """
    settings = configuration.settings
    logs.configure(level=settings.log_level, format=settings.log_format)
    _warn(configuration)
    keyring = Keyring.open(settings.api_key, settings.api_key_file)
    services = build_services(settings, keyring)
    running = listen(services, settings)
    engine = services.turns.engine
    engine.start()
    opening = asyncio.create_task(open_prompts(services.turns))
    log.info(
        "server.listening", url=_url(settings.host, running.port), port=running.port, model=settings.model_id
    )
    with _signals(keyring) as stopped:
        await stopped.wait()
        await _stop(running, services, settings.drain_timeout)
    opening.cancel()
    return 0


def build_services(settings: Settings, keyring: Keyring) -> Services:
    """Everything that handlers use; nothing is started yet. Unknown or broken plugins raise here."""
    parsers = ParserPair(
        reasoning=reasoning_parser(settings.reasoning_parser), tools=tool_parser(settings.tool_parser)
    )
    engine = build_engine(settings)
    return Services(
        settings=HttpSettings.of(settings),
        turns=Turns(engine, parsers, turn_defaults(settings)),
        adapters=adapters(),
        keyring=keyring,
        metrics=Metrics(engine, version=__version__),
        version=__version__,
        model_path=model_label(str(model_source(settings))),
        store=open_store(settings),
        tracing=open_tracing(os.environ, version=__version__),
    )


def open_store(settings: Settings) -> ResponseStore | None:
    """The response store, where one is wanted. Raises StoreUnusable."""
    if settings.response_store is None:
        return None
    file = pathlib.Path(settings.response_store.removeprefix(SCHEME))
    return ResponseStore(file, days=settings.response_store_days)


def build_engine(settings: Settings) -> Engine:
    """The scripted engine where a script was given, a model behind its thread otherwise."""
    limits = QueueLimits(
        slots=settings.max_batch, depth=settings.max_queue_depth, timeout=settings.queue_timeout
    )
    if settings.scripted is not None:
        return ScriptedEngine(
            read_script(settings.scripted), served=scripted_served(DEMO_FOLDER), limits=limits
        )
    from maple.engine.worker import ThreadedEngine  # noqa: PLC0415 -- only where a model is wanted

    return ThreadedEngine(model_loader(settings), limits=limits, session_files=session_files(settings))


def session_files(settings: Settings) -> SessionFiles | None:
    """Where sessions are saved, if they are."""
    if settings.session_dir is None:
        return None
    from maple.engine.session_files import SessionFiles  # noqa: PLC0415 -- only where a model is wanted

    return SessionFiles(settings.session_dir.expanduser(), max_bytes=settings.session_max_mb << 20)


def model_loader(settings: Settings) -> Loader:
    """The native kernels' loader, or torch's where they are missing or another device or type is wanted."""
    from maple.engine.cache import CacheLimits  # noqa: PLC0415 -- only where a model is wanted
    from maple.engine.choose import Wishes, choose_loader  # noqa: PLC0415
    from maple.engine.native_loader import native_loader  # noqa: PLC0415
    from maple.engine.runner import torch_loader  # noqa: PLC0415

    def torch() -> Loader:
        return torch_loader(
            lambda: load_options(settings),
            threads=settings.torch_threads,
            kv_cache_mb=settings.kv_cache_mb,
            limits=CacheLimits(
                prefix_bytes=settings.prefix_cache_mb << 20, shared=settings.shared_prefix_cache
            ),
        )

    def native() -> Loader:
        return native_loader(native_source(settings), kernel_options(settings), otherwise=torch)

    wishes = Wishes(device=settings.device, dtype=settings.dtype, pack_experts=settings.pack_experts)
    return choose_loader(wishes, native=native, torch=torch)


def native_source(settings: Settings) -> NativeSource:
    """What the native loader is told to load."""
    from maple.native.load import NativeSource  # noqa: PLC0415

    return NativeSource(
        source=str(model_source(settings)),
        revision=settings.revision,
        head_dtype=settings.head_dtype,
        cache_dir=settings.cache_dir or platformdirs.user_cache_path("maple"),
        preload=settings.preload,
    )


def kernel_options(settings: Settings) -> KernelOptions:
    """How the native kernels are to run."""
    from maple.engine.native_loader import KernelOptions, kv_dtype  # noqa: PLC0415

    return KernelOptions(
        activations=cast("ActivationMode", settings.activations),
        kv_dtype=kv_dtype(settings.kv_dtype),
        threads=settings.torch_threads,
        kv_cache_mb=settings.kv_cache_mb,
        slots=settings.max_batch,
        prefix_cache_mb=settings.prefix_cache_mb,
        shared_prefix_cache=settings.shared_prefix_cache,
    )


def load_options(settings: Settings) -> LoadOptions:
    """What the model layer is told; called on the engine's thread, since it imports torch."""
    from maple.model.load import LoadOptions  # noqa: PLC0415

    return LoadOptions(
        source=str(model_source(settings)),
        revision=settings.revision,
        device=settings.device,
        dtype=settings.dtype,
        pack_experts=settings.pack_experts,
        head_dtype=settings.head_dtype,
        cache_dir=settings.cache_dir or platformdirs.user_cache_path("maple"),
    )


def model_source(settings: Settings) -> str | pathlib.Path:
    """The embedded model, a folder or a hub id."""
    return DEMO_FOLDER if settings.demo or settings.scripted else settings.model_path


def turn_defaults(settings: Settings) -> TurnDefaults:
    """The part of the settings that turns read."""
    return TurnDefaults(
        model_id=settings.model_id,
        max_new_tokens=settings.max_new_tokens,
        max_new_tokens_limit=settings.max_new_tokens_limit,
        max_prompt_tokens=settings.max_prompt_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        enable_thinking=settings.enable_thinking,
        request_timeout=settings.request_timeout,
    )


async def open_prompts(turns: Turns) -> None:
    """Load the tokenizer once the model is there; a failure is the server's "error" state, not its end."""
    await turns.engine.loaded()
    served = turns.engine.served
    if served is None:
        return
    try:
        encoder = await asyncio.to_thread(PromptEncoder, served.folder)
    except MapleError as error:
        log.error("server.tokenizer_unusable", reason=str(error))  # noqa: TRY400 -- the reason is the whole story
        turns.fail(str(error))
        return
    turns.prompts = PromptPool(encoder)
    log.info("server.ready", load_seconds=round(served.load_seconds, 2))


async def _stop(running: RunningServer, services: Services, drain_timeout: float) -> None:
    log.info("server.draining", seconds=drain_timeout)
    complete = await running.drain(drain_timeout)
    await running.close()
    await services.turns.engine.close()
    if services.turns.prompts is not None:
        services.turns.prompts.close()
    if services.store is not None:
        services.store.close()
    if services.tracing is not None:
        await asyncio.to_thread(services.tracing.close)
    log.info("server.stopped", complete=complete)


@contextlib.contextmanager
def _signals(keyring: Keyring) -> Iterator[asyncio.Event]:
    """SIGTERM or SIGINT sets the event, a second one ends the process at once; SIGHUP rereads the keys."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if stopped.is_set():
            # Not sys.exit: the engine's thread may be in the middle of a long step.
            os._exit(1)
        stopped.set()

    handlers = {signal.SIGTERM: stop, signal.SIGINT: stop}
    if hasattr(signal, "SIGHUP"):
        handlers[signal.SIGHUP] = keyring.reload
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield stopped
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


def _warn(configuration: Configuration) -> None:
    settings = configuration.settings
    for variable in configuration.passed_over:
        log.warning("settings.service_link_passed_over", variable=variable)
    if settings.api_key is None and settings.api_key_file is None and not _is_loopback(settings.host):
        log.warning("server.open_to_the_network", host=settings.host, advice="set MAPLE_API_KEY")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _url(host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"
