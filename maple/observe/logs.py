"""Logging: structlog for our own lines and the libraries', in colour on a terminal, as JSON lines otherwise.

A line is a constant event and facts as keys. Prompts, keys and file contents are never facts.
"""

from __future__ import annotations

import functools
import logging
import sys
import traceback
from collections.abc import Collection
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from maple.observe.log_writer import LineWriter

QUIETER = ("tornado.access", "tornado.general", "asyncio", "httpx", "httpcore", "urllib3", "filelock")
"""Loggers whose routine lines repeat ours, or tell of peers that spoke no HTTP; their warnings are kept."""


def configure(
    *,
    level: str,
    format: str,  # noqa: A002
    stream: TextIO | None = None,
    unless: Collection[str] = (),
) -> None:
    """Set the process's logging up. ``level`` and ``format`` are the settings log_level and log_format.

    ``auto`` is console on a terminal and json otherwise. Lines go to ``stream``, stderr by default; where that is a
    file or pipe a thread writes them. Events that ``unless`` names are left out: they are told otherwise.
    """
    target = sys.stderr if stream is None else stream
    terminal = target.isatty()
    console = format == "console" or (format == "auto" and terminal)
    shared: list[Processor] = [functools.partial(_left_out, frozenset(unless)), *_shared()]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = _handler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *(_console(colours=terminal) if console else _json()),
            ],
        )
    )
    _route_stdlib(handler, level.upper())


def dropped_lines() -> int:
    """How many log lines nobody read in time."""
    handlers = logging.getLogger().handlers
    return sum(handler.dropped for handler in handlers if isinstance(handler, LineWriter))


def last_words(text: str) -> None:
    """Tell whoever started the process, on stderr behind the log's lines; whoever reads it is not waited for long."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LineWriter) and handler.is_for(sys.stderr):
            handler.end_with(text)
            return
    print(text, file=sys.stderr)  # noqa: T201 -- no log yet: a command's own terminal


def traceback_text(error: BaseException) -> str:
    """Where an error came from, without what it says: the words of a KeyError may be a prompt."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\ncaused\n".join(
        "".join(traceback.format_tb(each.__traceback__)) + type(each).__qualname__ for each in reversed(chain)
    )


def _handler(target: TextIO) -> logging.Handler:
    try:
        return LineWriter(target.fileno())
    except OSError:  # text kept in memory
        return logging.StreamHandler(target)


def _route_stdlib(handler: logging.Handler, level: str) -> None:
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.captureWarnings(capture=True)
    for name in QUIETER:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def _shared() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,  # without the frames' locals, which hold prompts
    ]


def _left_out(names: Collection[str], _: WrappedLogger, __: str, event: EventDict) -> EventDict:
    if event.get("event") in names:
        raise structlog.DropEvent
    return event


def _json() -> list[Processor]:
    return [structlog.processors.JSONRenderer()]


def _console(*, colours: bool) -> list[Processor]:
    renderer = structlog.dev.ConsoleRenderer(
        colors=colours, exception_formatter=structlog.dev.plain_traceback
    )
    return [_escape, renderer]


def _escape(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Spell out what could move a terminal's cursor or fake a line; tracebacks keep their own line ends."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            keep = "\n" if key in ("exception", "stack") else ""
            event[key] = "".join(
                char if char.isprintable() or char in keep else _spelled(char) for char in value
            )
    return event


def _spelled(char: str) -> str:
    return char.encode("unicode_escape").decode()
