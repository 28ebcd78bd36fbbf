"""Where templates run: Jinja's sandbox, with what chat templates expect and bounds on time and size.

By hand: Jinja's own bounds what a template may reach, not how long it runs nor how much it makes.
"""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import functools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import attrs
import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils
import jinja2.visitor
from jinja2.runtime import Context

from maple.prompt.bounds import (
    BoundError,
    bounded_filter,
    check_format,
    check_method,
    check_operation,
    join,
    weigh,
)
from maple.prompt.control_text import ControlText, unseal_value

RENDER_SECONDS = 20.0


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
    """Start the clock of one rendering, whose text is sealed by ``control``. Leave it in the thread it began in."""
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
        optimized=False,  # which would compute constant expressions while compiling, without a clock
    )
    environment.filters["tojson"] = _tojson
    environment.filters = {name: bounded_filter(name, each) for name, each in environment.filters.items()}
    del environment.globals["lipsum"]
    environment.globals.update(_GLOBALS)
    return environment


def watch(tree: jinja2.nodes.Template) -> jinja2.nodes.Template:
    """The tree with the sandbox's eyes in it: every turn of a loop begins with a call, where it looks at the clock,
    and ``~`` is a call that weighs.
    """
    for loop in tree.find_all(jinja2.nodes.For):
        loop.body.insert(0, jinja2.nodes.ExprStmt(_call("tick", [])).set_lineno(loop.lineno, override=False))
    found: jinja2.nodes.Template = _Concatenations().visit(tree)
    return found


def _call(name: str, arguments: list[jinja2.nodes.Expr]) -> jinja2.nodes.Call:
    return jinja2.nodes.Call(jinja2.nodes.EnvironmentAttribute(name), arguments, [], None, None)


class _Concatenations(jinja2.visitor.NodeTransformer):
    """Jinja joins without asking the sandbox."""

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:  # noqa: N802 -- Jinja's name
        """``a ~ b`` as a call."""
        self.generic_visit(node)
        return _call("concatenate", node.nodes).set_lineno(node.lineno)


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox, which minds the clock at calls and the size of what operators build."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(functools.partial(join, ""))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call ``__obj`` for a template; odd names, as in Jinja, because ``kwargs`` may hold any other."""
        if time.monotonic() > _rendering.get().deadline:
            raise BoundError(f"it ran for more than {RENDER_SECONDS:g} s")
        text, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(text, str):
            if name == "join":
                return join(text, *args)
            check_method(name, text, (*args, *kwargs.values()))
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute ``left operator right`` unless the result would be huge."""
        check_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format`` as Jinja makes it safe, unless it would pad or repeat beyond all use."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            check_format(value.__self__, (*args, *kwargs.values()))
            return wrapped(*args, **kwargs)

        return bounded

    @staticmethod
    def concatenate(*values: Any) -> str:
        """``a ~ b``."""
        weigh(values)
        return join("", map(str, values))

    @staticmethod
    def tick() -> str:
        """Do nothing, through ``call``: what every turn of a loop does first."""
        return ""


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}`` marks text for training; here it is just its body."""

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
        weigh(value)
        return _rendering.get().control.seal(str(unseal_value(value)))
    return value
