"""Markdown on a terminal while it grows: finished blocks are printed for good, the last one is drawn anew."""

from __future__ import annotations

from itertools import chain
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment, Segments

_REDRAWS = 8
"""Times a second that the last block is drawn."""


class GrowingMarkdown:
    """An answer's text, which must be free of control characters. ``close`` ends it and leaves the cursor below it.

    A block is finished when another one follows it. Of the last one as many lines are drawn as the terminal has: what
    has left the screen cannot be drawn again.
    """

    def __init__(self, out: TextIO) -> None:
        self._console = Console(file=out, highlight=False)
        self._pending = ""
        self._printed = False
        self._live = Live(
            console=self._console, get_renderable=self._tail, refresh_per_second=_REDRAWS, transient=True
        )
        self._live.start()

    def add(self, text: str) -> None:
        """Show a further piece."""
        self._pending += text
        if "\n" in text:
            self._print_finished()

    def close(self) -> None:
        """Print what is left."""
        rest, self._pending = self._pending, ""
        self._live.stop()
        self._print(rest)

    def _print_finished(self) -> None:
        """All blocks but the last."""
        starts = [token.map[0] for token in Markdown(self._pending).parsed if token.level == 0 and token.map]
        if len(starts) > 1:
            lines = self._pending.split("\n")
            self._pending = "\n".join(lines[starts[-1] :])
            self._print("\n".join(lines[: starts[-1]]))

    def _print(self, text: str) -> None:
        if not text.strip():
            return
        if self._printed:
            self._console.print()
        self._console.print(_rendered(text))
        self._printed = True

    def _tail(self) -> Segments:
        """The last lines of what is not finished; called by the thread that draws."""
        lines = self._console.render_lines(_rendered(self._pending), pad=False)
        kept = lines[-max(1, self._console.height - 2) :]
        return Segments(chain.from_iterable([*line, Segment.line()] for line in kept))


def _rendered(text: str) -> Markdown:
    """Links show where they lead to."""
    return Markdown(text, hyperlinks=False)
