"""Where templates run: Jinja's sandbox, with what chat templates expect and bounds on time and size."""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import json
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import attrs
import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils
from jinja2.runtime import Context

from maple.prompt.control_text import ControlText, unseal_value

RENDER_SECONDS = 20.0
LARGEST_VALUE = 1 << 26
"""Characters or items that one expression of a template may build."""


class BoundError(jinja2.TemplateError):
    """The template takes too long or builds too much."""


class RefusedError(jinja2.TemplateError):
    """Raised by a template's raise_exception."""


@attrs.frozen
class _Rendering:
    """What a call in progress must know; a context variable, because templates are shared between threads."""

    control: ControlText
    deadline: float


_rendering: contextvars.ContextVar[_Rendering] = contextvars.ContextVar("maple_rendering")


@contextlib.contextmanager
def rendering(control: ControlText) -> Iterator[None]:
    """Start the clock of one rendering, whose text is sealed by `control`. Leave it in the thread it began in."""
    token = _rendering.set(_Rendering(control, time.monotonic() + RENDER_SECONDS))
    try:
        yield
    finally:
        _rendering.reset(token)


def sandbox() -> jinja2.Environment:
    """Make an environment with the filters and globals that Transformers gives to chat templates."""
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
        finalize=_finalize,
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(_GLOBALS)
    return environment


def watch_loops(tree: jinja2.nodes.Template) -> None:
    """Make every turn of a loop begin with a call, where the sandbox looks at the clock."""
    for loop in tree.find_all(jinja2.nodes.For):
        tick = jinja2.nodes.Call(jinja2.nodes.EnvironmentAttribute("tick"), [], [], None, None)
        loop.body.insert(0, jinja2.nodes.ExprStmt(tick).set_lineno(loop.lineno, override=False))


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox, which minds the clock at calls and the size of what operators build."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call `__obj` for a template; odd names, as in Jinja, because `kwargs` may hold any other."""
        if time.monotonic() > _rendering.get().deadline:
            raise BoundError(f"it ran for more than {RENDER_SECONDS:g} s")
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right` unless the result would be huge."""
        if operator == "*" and _extent(left) * _extent(right) > LARGEST_VALUE:
            raise BoundError("it multiplies a text or list beyond all use")
        if operator == "+" and _extent(left) + _extent(right) > LARGEST_VALUE:
            raise BoundError("it builds a text or list beyond all use")
        if operator == "**" and abs(right) > 64:
            raise BoundError("it raises a number to a power beyond all use")
        return super().call_binop(context, operator, left, right)

    @staticmethod
    def tick() -> str:
        """Do nothing, through `call`: what every turn of a loop does first."""
        return ""


def _extent(value: object) -> int:
    if isinstance(value, str | list | tuple):
        return max(1, len(value))
    return abs(value) if isinstance(value, int) else 1


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks text for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Return the tag's body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """A namespace without underscore names, so that a template cannot plant Python's special attributes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _refuse_underscore(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: object) -> None:
    if str(name).startswith("_"):
        raise jinja2.exceptions.SecurityError("a namespace attribute begins with an underscore")


def _raise_exception(message: object) -> NoReturn:
    raise RefusedError(str(message))


def _strftime_now(format: str) -> str:  # noqa: A002 (the name that templates may use)
    return datetime.datetime.now().astimezone().strftime(format)


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


_GLOBALS = {
    "raise_exception": _raise_exception,
    "strftime_now": _strftime_now,
    "namespace": _Namespace,
    "dict": _new_dict,
}


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Transformers' templates get it: no HTML escapes, non-ASCII as it is.

    The seals are laid anew on the JSON text, because escaping would change them.
    """
    text = json.dumps(
        unseal_value(value),
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    return _rendering.get().control.seal(text)


def _finalize(value: object) -> object:
    """What a template prints. Python's own text of a container would show its seals."""
    if isinstance(value, dict | list | tuple):
        return _rendering.get().control.seal(str(unseal_value(value)))
    return value
