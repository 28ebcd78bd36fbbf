"""A log whose reader is slow, stuck or gone costs lines, never time."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

from maple_testing.guard import HANG_GUARD

from maple.observe import logs
from maple.observe.log_writer import LineWriter

LINES = 20_000


def logger_of(writer: LineWriter) -> logging.Logger:
    logger = logging.Logger("a library's")
    logger.addHandler(writer)
    return logger


def test_lines_are_written_in_order_and_whole() -> None:
    """What was logged before a flush has been written after it."""
    reading, writing = os.pipe()
    writer = LineWriter(writing)
    for number in range(100):
        logger_of(writer).warning("line %s \ud800", number)
    writer.flush()
    found = os.read(reading, 1 << 16).decode().splitlines()
    assert found == [f"line {number} \\ud800" for number in range(100)]
    assert writer.dropped == 0
    os.close(reading)


def test_nobody_waits_for_a_reader_and_lost_lines_are_told() -> None:
    """Twenty thousand lines into a pipe that nobody reads; once somebody does, each is there or counted."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream, os.fdopen(reading) as lines:
        logs.configure(level="info", format="json", stream=stream)
        for number in range(LINES):
            logging.getLogger("test").warning(str(number))
        dropped = logs.dropped_lines()
        assert dropped > 0
        read: list[str] = []
        told: list[int] = []

        def take() -> None:
            """The next line; what was lost is told as soon as there is room, which may be in between."""
            line = json.loads(lines.readline())
            if line["event"] == "log.lines_dropped":
                told.append(line["lines"])
            else:
                read.append(line["event"])

        while len(read) < LINES - dropped:
            take()
        logging.getLogger("test").warning("more")
        while read[-1] != "more" or sum(told) < dropped:
            take()
    kept = list(map(int, read[:-1]))
    assert kept == sorted(set(kept))
    assert sum(told) == dropped


def test_a_reader_that_left_is_no_error() -> None:
    """The lines are lost and counted."""
    reading, writing = os.pipe()
    os.close(reading)
    writer = LineWriter(writing)
    for _ in range(10):
        logger_of(writer).warning("x")
    writer.flush()
    assert writer.dropped == 10


def test_last_words_come_behind_the_log_and_wait_for_nobody() -> None:
    """Why a process ends stands below what it logged; with a reader that is stuck, the process ends all the same."""
    program = (
        "import logging, sys\n"
        "from maple.observe import logs\n"
        "logs.configure(level='info', format='json')\n"
        "for number in range(int(sys.argv[1])):\n"
        "    logging.getLogger('test').warning('x' * 1000)\n"
        "logs.last_words('maple: that is why')\n"
    )
    for lines in (50, 5000):
        command = [sys.executable, "-c", program, str(lines)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            if lines > 1000:  # more than a pipe and the queue hold
                assert process.wait(timeout=HANG_GUARD) == 0
                continue
            told = process.stderr.read().splitlines()
            assert (len(told), told[-1]) == (lines + 1, "maple: that is why")
