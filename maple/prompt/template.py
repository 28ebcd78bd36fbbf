"""A checkpoint's chat template: foreign code, run in Jinja's sandbox, with bounds on time and size."""

from __future__ import annotations

import traceback
from collections.abc import Generator, Iterator, Mapping

import attrs
import jinja2
import jinja2.meta
import jinja2.nodes

from maple.errors import MapleError
from maple.prompt.bounds import BoundError
from maple.prompt.control_text import ControlText
from maple.prompt.sandbox import RefusedError, rendering, sandbox, watch

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


class ChatTemplate:
    """One compiled template. Thread safe."""

    def __init__(self, source: str) -> None:
        """Compile. Raises TemplateInvalid."""
        environment = sandbox()
        try:
            tree = environment.parse(source)
            self.words = frozenset(_words(tree))
            """String constants and attribute names: what the template itself looks for in its data."""
            undeclared = jinja2.meta.find_undeclared_variables(tree) - environment.globals.keys()
            self.variables = frozenset(undeclared & _read_before_set(tree))
            """Names whose value the template takes from outside."""
            self._template = environment.from_string(watch(tree))
        except jinja2.TemplateSyntaxError as error:
            raise TemplateInvalid(_one_line(f"line {error.lineno}: {error.message}")) from error
        except _COMPILE_ERRORS as error:
            raise TemplateInvalid(_one_line(error)) from error

    def render(self, variables: Mapping[str, object], control: ControlText) -> Generator[str]:
        """Yield the prompt in parts. ``variables`` are sealed by ``control``; their JSON is sealed anew.

        Raises TemplateFailed or TemplateRefused. The caller bounds the output: close the generator, in the thread
        that iterates it, once there is too much.
        """
        try:
            with rendering(control):
                yield from self._template.generate(variables)
        except RefusedError as error:
            raise TemplateRefused(_one_line(error)) from error
        except BoundError as error:
            raise TemplateFailed(_one_line(error)) from error
        except Exception as error:  # foreign code: whatever it raises is its own failure
            raise TemplateFailed(_described(error)) from error


def _one_line(reason: object) -> str:
    return " ".join(str(reason).split())[:_REASON_LIMIT] or type(reason).__name__


def _described(error: Exception) -> str:
    """An error's kind and place in the template; its own words could quote the conversation."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"
    ]
    return f"{type(error).__name__} in line {lines[-1]}" if lines else type(error).__name__


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
