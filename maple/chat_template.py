"""A checkpoint's chat template: foreign code, run in Jinja's sandbox, with bounds on time and size."""

from __future__ import annotations

import contextvars
import datetime
import json
import time
import traceback
from collections.abc import Generator, Iterator, Mapping
from typing import Any, NoReturn

import attrs
import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils
from jinja2.runtime import Context

from maple.control_text import ControlText, unseal_value
from maple.errors import MapleError

RENDER_SECONDS = 20.0
LARGEST_VALUE = 1 << 26
"""Characters or items that one expression of a template may build."""

_REASON_LIMIT = 200
_COMPILE_ERRORS = (jinja2.TemplateError, RecursionError, SyntaxError, MemoryError, OverflowError, ValueError)


@attrs.define(eq=False, str=False)
class TemplateInvalid(MapleError):
    """The chat template cannot be used at all. ``reason`` is one line for logs and /health."""

    reason: str

    def __str__(self) -> str:
        return f"the chat template cannot be used: {self.reason}"


@attrs.define(eq=False, str=False)
class TemplateFailed(MapleError):
    """The chat template broke on a conversation. ``reason`` is one line for logs, without the client's text."""

    reason: str

    def __str__(self) -> str:
        return f"the chat template failed: {self.reason}"


@attrs.define(eq=False, str=False)
class TemplateRefused(MapleError):
    """The chat template does not take such a conversation, and says so by ``raise_exception``: ``reason``."""

    reason: str

    def __str__(self) -> str:
        return f"the chat template refused the conversation: {self.reason}"


@attrs.frozen
class _Rendering:
    """What a call in progress must know; a context variable, because templates are shared between threads."""

    control: ControlText
    deadline: float


_rendering: contextvars.ContextVar[_Rendering] = contextvars.ContextVar("maple_rendering")


class ChatTemplate:
    """One compiled template. Thread safe."""

    def __init__(self, source: str) -> None:
        """Compile. Raises TemplateInvalid."""
        environment = _Sandbox(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, jinja2.ext.loopcontrols],
            finalize=_finalize,
        )
        environment.filters["tojson"] = _tojson
        environment.globals.update(_GLOBALS)
        try:
            tree = environment.parse(source)
            self.words = frozenset(_words(tree))
            """String constants and attribute names: what the template itself looks for in its data."""
            undeclared = jinja2.meta.find_undeclared_variables(tree) - environment.globals.keys()
            self.variables = frozenset(undeclared & _read_before_set(tree))
            """Names whose value the template takes from outside."""
            _count_loops(tree)
            self._template = environment.from_string(tree)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateInvalid(_one_line(f"line {error.lineno}: {error.message}")) from error
        except _COMPILE_ERRORS as error:
            raise TemplateInvalid(_one_line(error)) from error

    def render(self, variables: Mapping[str, object], control: ControlText) -> Generator[str]:
        """Yield the prompt in parts. ``variables`` are sealed by ``control``; their JSON is sealed anew.

        Raises TemplateFailed or TemplateRefused. The caller bounds the output: close the generator, in the thread
        that iterates it, once there is too much.
        """
        token = _rendering.set(_Rendering(control, time.monotonic() + RENDER_SECONDS))
        try:
            yield from self._template.generate(variables)
        except _RefusedError as error:
            raise TemplateRefused(_one_line(error)) from error
        except _BoundError as error:
            raise TemplateFailed(_one_line(error)) from error
        except Exception as error:  # foreign code: whatever it raises is its own failure
            raise TemplateFailed(_described(error)) from error
        finally:
            _rendering.reset(token)


def _one_line(reason: object) -> str:
    return " ".join(str(reason).split())[:_REASON_LIMIT] or type(reason).__name__


def _described(error: Exception) -> str:
    """An error's kind and place in the template; its own words could quote the conversation."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"
    ]
    return f"{type(error).__name__} in line {lines[-1]}" if lines else type(error).__name__


class _BoundError(jinja2.TemplateError):
    """The template takes too long or builds too much."""


class _RefusedError(jinja2.TemplateError):
    """Raised by a template's raise_exception."""


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox, which minds the clock at calls and the size of what operators build."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call ``__obj`` for a template; odd names, as in Jinja, because ``kwargs`` may hold any other."""
        if time.monotonic() > _rendering.get().deadline:
            raise _BoundError(f"it ran for more than {RENDER_SECONDS:g} s")
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute ``left operator right`` unless the result would be huge."""
        if operator == "*" and _extent(left) * _extent(right) > LARGEST_VALUE:
            raise _BoundError("it multiplies a text or list beyond all use")
        if operator == "+" and _extent(left) + _extent(right) > LARGEST_VALUE:
            raise _BoundError("it builds a text or list beyond all use")
        if operator == "**" and abs(right) > 64:
            raise _BoundError("it raises a number to a power beyond all use")
        return super().call_binop(context, operator, left, right)

    @staticmethod
    def tick() -> str:
        """Do nothing, through ``call``: what every turn of a loop does first."""
        return ""


def _extent(value: object) -> int:
    if isinstance(value, str | list | tuple):
        return max(1, len(value))
    return abs(value) if isinstance(value, int) else 1


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
    raise _RefusedError(str(message))


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


def _words(tree: jinja2.nodes.Template) -> Iterator[str]:
    for node in tree.find_all((jinja2.nodes.Const, jinja2.nodes.Getattr)):
        word = node.value if isinstance(node, jinja2.nodes.Const) else getattr(node, "attr", None)
        if isinstance(word, str):
            yield word


def _read_before_set(tree: jinja2.nodes.Template) -> set[str]:
    """Names that the template reads before, in the order of its text, it gives them a value itself."""
    read: set[str] = set()
    given: set[str] = set()
    for name in _names(tree):
        if name.ctx == "load" and name.name not in given:
            read.add(name.name)
        given.add(name.name)
    return read


def _names(node: jinja2.nodes.Node) -> Iterator[jinja2.nodes.Name]:
    """All names, a value's before those that it is given to."""
    if isinstance(node, jinja2.nodes.Name):
        yield node
    children = list(node.iter_child_nodes())
    if isinstance(node, jinja2.nodes.Assign | jinja2.nodes.For):
        target = node.target
        value = node.node if isinstance(node, jinja2.nodes.Assign) else node.iter
        children = [value, target, *(child for child in children if child not in (target, value))]
    for child in children:
        yield from _names(child)


def _count_loops(tree: jinja2.nodes.Template) -> None:
    """Make every turn of a loop begin with a call, where the sandbox looks at the clock."""
    for loop in tree.find_all(jinja2.nodes.For):
        tick = jinja2.nodes.Call(jinja2.nodes.EnvironmentAttribute("tick"), [], [], None, None)
        loop.body.insert(0, jinja2.nodes.ExprStmt(tick).set_lineno(loop.lineno, override=False))
