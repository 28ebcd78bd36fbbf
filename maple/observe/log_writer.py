"""Log lines written by a thread of their own: whoever logs never waits for whoever reads the log."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from typing import TextIO

import structlog

log = structlog.get_logger(__name__)

_MOST_LINES = 1000
"""Lines that may wait to be written."""

_PATIENCE = 1.0
"""Seconds that a process waits at its end for its last lines to be read."""


class LineWriter(logging.Handler):
    """Writes to a descriptor, in the order of logging. Lines that cannot wait any more are dropped and counted.

    The thread may be stuck in a write at the process's end, so it writes to the descriptor itself: there is no
    stream whose lock it would hold.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._refused = self._unwritten = self._told = 0
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | threading.Event] = queue.Queue(_MOST_LINES)
        threading.Thread(target=self._write_all, name="maple-log", daemon=True).start()

    @property
    def dropped(self) -> int:
        """Lines that were not written and will not be."""
        return self._refused + self._unwritten

    def emit(self, record: logging.LogRecord) -> None:
        """Hand the line on, and tell of lost ones once there is room again."""
        try:
            line = self.format(record)
        except Exception:  # a library's record whose arguments do not fit its text
            self.handleError(record)
            return
        try:
            self._lines.put_nowait(f"{line}\n".encode(errors="backslashreplace"))
        except queue.Full:
            self._refused += 1
        if self.dropped > self._told and self._lines.qsize() < _MOST_LINES // 2:
            lost, self._told = self.dropped - self._told, self.dropped
            log.warning("log.lines_dropped", lines=lost)

    def is_for(self, stream: TextIO) -> bool:
        """Whether lines go where the stream's do."""
        try:
            return stream.fileno() == self._descriptor
        except OSError:  # text kept in memory
            return False

    def end_with(self, text: str) -> None:
        """Write a text as it is behind all that was logged, and wait for it as ``flush`` does."""
        with contextlib.suppress(queue.Full):
            self._lines.put(f"{text}\n".encode(errors="backslashreplace"), timeout=_PATIENCE)
        self.flush()

    def flush(self) -> None:
        """Wait until what was logged so far is written, but not for ever."""
        written = threading.Event()
        try:
            self._lines.put(written, timeout=_PATIENCE)
        except queue.Full:
            return
        written.wait(_PATIENCE)

    def _write_all(self) -> None:
        while True:
            line = self._lines.get()
            if isinstance(line, threading.Event):
                line.set()
                continue
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:  # nobody reads any more, or the disk is full
                self._unwritten += 1
