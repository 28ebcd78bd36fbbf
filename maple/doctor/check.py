"""What a check is, and what it finds."""

from __future__ import annotations

import abc
from typing import ClassVar, Literal

import attrs

from maple.settings import Settings

Level = Literal["good", "note", "bad"]


@attrs.frozen(kw_only=True)
class Finding:
    """One line: ``good``, a ``note`` (it works, but something is lost), or ``bad`` (it will not work).

    ``advice`` says what to do about it.
    """

    level: Level
    text: str
    advice: str = ""


class Check(abc.ABC):
    """Looks at one thing. Subclass it, name it, and add it to ``CHECKS``.

    A check is made with the settings that the server would have and changes nothing. It takes a second or so,
    a few where torch has to be tried or the hub to be asked, and raises nothing: whatever it finds is a finding.
    """

    title: ClassVar[str]

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @abc.abstractmethod
    def run(self) -> Finding:
        """Look."""
