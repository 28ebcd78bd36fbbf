"""Why a parser could not be chosen, or failed. Every leaf has its facts as fields and one line for a log."""

from __future__ import annotations

import attrs


class ParserError(Exception):
    """Base of every error that choosing or running a parser can raise."""


@attrs.define(eq=False)
class UnknownParser(ParserError):
    """No installed distribution offers a parser of this name. ``near`` is the most similar known name."""

    kind: str
    name: str
    known: tuple[str, ...]
    near: str | None

    def __str__(self) -> str:
        hint = f", did you mean {self.near}?" if self.near else ""
        known = ", ".join(self.known) or "none"
        return f"no {self.kind} parser is called {self.name!r}{hint} (installed: {known}; or ./file.py:Class)"


@attrs.define(eq=False)
class AmbiguousParser(ParserError):
    """More than one distribution offers a parser of this name."""

    kind: str
    name: str
    distributions: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"the {self.kind} parser {self.name!r} is offered by more than one distribution: "
            f"{', '.join(self.distributions)}; uninstall all but one"
        )


@attrs.define(eq=False)
class ParserFileMissing(ParserError):
    """The file of ``./file.py:Class`` is not there."""

    path: str

    def __str__(self) -> str:
        return f"there is no parser file {self.path}"


@attrs.define(eq=False)
class ParserClassMissing(ParserError):
    """The module was imported but has no such class; ``target`` is ``module:Class`` or ``file.py:Class``."""

    target: str

    def __str__(self) -> str:
        return f"there is no class {self.target}"


@attrs.define(eq=False)
class ParserImportError(ParserError):
    """The parser's module raised while it was imported; ``__cause__`` is what it raised."""

    target: str

    def __str__(self) -> str:
        return f"importing {self.target} failed"


@attrs.define(eq=False)
class NotAParser(ParserError):
    """What was named does not keep the contract of ``maple_plugins.parser``."""

    kind: str
    target: str
    reason: str

    def __str__(self) -> str:
        return f"{self.target} is no {self.kind} parser: {self.reason}"


@attrs.define(eq=False)
class ParserFailed(ParserError):
    """A parser raised while it read a text; ``target`` is ``module:Class``, ``__cause__`` what it raised."""

    target: str

    def __str__(self) -> str:
        return f"the parser {self.target} failed"
