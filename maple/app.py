"""The composition root: settings become parts, parts become one server, and signals end it."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import pathlib
import signal
from collections.abc import Iterator

import structlog
from maple_plugins.registry import reasoning_parser, tool_parser
from maple_protocols.registry import protocols

from maple import __version__
from maple.choose_engine import build_engine, model_source
from maple.configure import Configuration, cache_folder
from maple.errors import MapleError
from maple.http.keys import Keyring
from maple.http.routes import TAKEN
from maple.http.server import RunningServer, listen
from maple.http.services import HttpSettings, Services, model_label
from maple.observe import logs
from maple.observe.metrics import Metrics
from maple.observe.tracing import open_tracing
from maple.prompt.encode import PromptEncoder, PromptPool
from maple.responses_store import SCHEME, ResponseStore
from maple.settings import Settings
from maple.turn import ParserPair, TurnDefaults, Turns

log = structlog.get_logger(__name__)


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
        protocols=protocols(TAKEN),
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
    for variable, owner in configuration.passed_over.items():
        log.warning("settings.variable_passed_over", variable=variable, read_by=owner)
    if cache_folder(settings) is None:
        log.warning("settings.no_cache_folder", advice="set MAPLE_CACHE_DIR, or every start packs anew")
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
