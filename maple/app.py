"""The composition root: settings become parts, parts become one server, and signals end it."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import ipaddress
import os
import pathlib
import signal
import socket
import sys
from collections.abc import Iterator

import attrs
import structlog
from maple_plugins.registry import reasoning_parser, tool_parser
from maple_protocols.registry import protocols

from maple import __version__
from maple.choose_engine import build_engine, model_source
from maple.configure import Configuration, cache_folder
from maple.errors import MapleError
from maple.http.invitation import DEMO
from maple.http.keys import Keyring
from maple.http.routes import TAKEN
from maple.http.server import RunningServer, listen
from maple.http.services import HttpSettings, Services, model_label
from maple.memory_store import AnswerStore, MemoryStore
from maple.observe import logs
from maple.observe.metrics import Metrics
from maple.observe.systemd import Notifier
from maple.observe.tracing import open_tracing
from maple.observe.watchdog import Watchdog, end_anyway
from maple.prompt.encode import PromptEncoder
from maple.prompt.pool import PromptPool
from maple.prompt.trial import try_template
from maple.responses_store import SCHEME, ResponseStore
from maple.settings import Settings
from maple.signing import signer
from maple.terminal import LAST_LINES, StartFailed, announce, attended, greet, log_level, part, reachable
from maple.turn_parsers import ParserPair
from maple.turns import TurnDefaults, Turns

log = structlog.get_logger(__name__)

ENDING_SECONDS = 4.0
"""What comes after the drain must not take longer, whatever hangs."""


async def serve(configuration: Configuration) -> int:
    """Serve until a signal; returns 0 once drained.

    Raises MapleError (or a parser's or protocol's own error) where the server cannot start.
    """
    settings = configuration.settings
    told = LAST_LINES if attended() else ()
    logs.configure(level=log_level(configuration), format=settings.log_format, unless=told)
    if sys.stderr is not None:
        faulthandler.enable()  # a mapped file that is cut short ends the process: not without a word
    with _signals() as signals:
        _warn(configuration)
        if attended():
            greet(str(model_source(settings)), settings.model_id, demo=settings.demo)
        signals.keyring = Keyring.open(settings.api_key, settings.api_key_file)
        services = build_services(settings, signals.keyring)
        running = listen(services, settings)
        services.turns.engine.start()
        opening = asyncio.create_task(open_prompts(services.turns))
        notifier = Notifier.of(os.environ)
        watchdog = Watchdog(services.turns.engine.steps, notifier, services.metrics.loop_lag.observe)
        watchdog.start()
        notifier.ready()
        url = _url(settings.host, running.port)
        log.info("server.listening", url=url, port=running.port, model=settings.model_id)
        turns = services.turns
        if attended():
            opening.add_done_callback(
                lambda _: announce(
                    turns,
                    reachable(settings.host, running.port),
                    ui=settings.ui,
                    open_page=settings.open,
                    stop=signals.stop,
                )
            )
        await signals.stopped.wait()
        failed = turns.error if attended() and turns.status == "error" else None
        if attended() and (running_now := turns.engine.stats().running):
            part(running_now)
        notifier.stopping()
        end_anyway(settings.drain_timeout + ENDING_SECONDS)
        log.info("server.draining", seconds=settings.drain_timeout)
        complete = await running.drain(settings.drain_timeout)
        signals.drained = True
        await _close(running, services)
        opening.cancel()
        watchdog.close()
        log.info("server.stopped", complete=complete)
    if failed:
        raise StartFailed(failed)
    return 0


def build_services(settings: Settings, keyring: Keyring) -> Services:
    """Everything that handlers use; nothing is started yet. Unknown or broken plugins raise here."""
    parsers = ParserPair(
        reasoning=reasoning_parser(settings.reasoning_parser), tools=tool_parser(settings.tool_parser)
    )
    engine = build_engine(settings, keyring)
    return Services(
        settings=HttpSettings.of(settings),
        turns=Turns(engine, parsers, turn_defaults(settings), signer(cache_folder(settings))),
        protocols=protocols(TAKEN, settings.protocols),
        keyring=keyring,
        metrics=Metrics(engine, version=__version__),
        version=__version__,
        model_path=model_label(str(model_source(settings))),
        invitation=DEMO if settings.demo else None,
        store=open_store(settings),
        tracing=open_tracing(os.environ, version=__version__),
    )


def open_store(settings: Settings) -> AnswerStore | None:
    """The response store, where one is wanted; at the extended level in memory by default. Raises StoreUnusable."""
    if settings.response_store is None:
        return MemoryStore() if settings.api_level == "extended" else None
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
        answer_reserve=settings.reserve,
        loop_guard=settings.guards_loops,
        efforts=settings.efforts,
    )


async def open_prompts(turns: Turns) -> None:
    """Load the tokenizer once the model is there; a failure is the server's "error" state, not its end."""
    await turns.engine.loaded()
    served = turns.engine.served
    if served is None:
        return
    try:
        await asyncio.to_thread(try_template, served.folder)
        encoder = await asyncio.to_thread(PromptEncoder, served.folder)
    except MapleError as error:
        log.error("server.tokenizer_unusable", reason=str(error))  # noqa: TRY400 -- the reason is the whole story
        turns.fail(str(error))
        return
    turns.prompts = PromptPool(encoder)
    log.info("server.ready", load_seconds=round(served.load_seconds, 2))


async def _close(running: RunningServer, services: Services) -> None:
    await running.close()
    await services.turns.engine.close()
    if services.turns.prompts is not None:
        services.turns.prompts.close()
    if services.store is not None:
        services.store.close()
    if services.tracing is not None:
        await asyncio.to_thread(services.tracing.close)


@attrs.define
class _Signals:
    """What signals do. ``stopped`` is set by the first SIGTERM or SIGINT; a second one ends the process at once."""

    stopped: asyncio.Event = attrs.field(factory=asyncio.Event)
    drained: bool = False
    keyring: Keyring | None = None

    def stop(self) -> None:
        if self.stopped.is_set():
            # Not sys.exit: the engine's thread may be in the middle of a long step.
            os._exit(0 if self.drained else 1)
        self.stopped.set()

    def hang_up(self) -> None:
        if self.keyring is not None:
            self.keyring.reload()


@contextlib.contextmanager
def _signals() -> Iterator[_Signals]:
    """Signals as callbacks of the loop; afterwards they are ignored to the process's end.

    Not by ``add_signal_handler``: a closing loop puts the default actions back, and an impatient second SIGTERM would
    become the exit code of a clean end.
    """
    signals, loop = _Signals(), asyncio.get_running_loop()
    handlers = {
        signal.SIGTERM: signals.stop,
        signal.SIGINT: signals.stop,
        signal.SIGHUP: signals.hang_up,
    }
    reading, writing = socket.socketpair()
    with reading, writing:
        reading.setblocking(False)
        writing.setblocking(False)
        loop.add_reader(reading, lambda: [handlers[signal.Signals(came)]() for came in reading.recv(64)])
        signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        for number in handlers:
            signal.signal(number, lambda *_: None)  # what is to be done, the wake-up brings about
        try:
            yield signals
        finally:
            for number in handlers:
                signal.signal(number, signal.SIG_IGN)
            signal.set_wakeup_fd(-1)
            loop.remove_reader(reading)


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
