"""Which kind of adapter a protocol is, and whether it is all of it: looked at once, before anything is served."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Set
from typing import Any, Generic, Protocol

import attrs

from maple_protocols.adapter import GenerationAdapter, KeepingAdapter, ListingAdapter
from maple_protocols.dialect import Dialect, RouteAdapter

DIALECT = ("framing", "any_content_type", "count_path", "greeting", "headers", "refusal", "counts")
"""What any adapter may have, in the order in which it is checked."""
OPTIONAL = frozenset({"answers", "controlled", "counted", "header", *DIALECT})


@attrs.frozen
class _Want:
    """What a member must be: words for a person, and the test."""

    words: str
    fits: Callable[[Any], bool]


_ROUTE = _Want("a path that begins with /", lambda value: isinstance(value, str) and value.startswith("/"))


def _are_routes(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(map(_ROUTE.fits, value))
        and all(isinstance(methods, tuple) and methods for methods in value.values())
        and {method for methods in value.values() for method in methods} <= {"GET", "POST", "DELETE"}
    )


_TABLE = _Want("an attrs class", lambda value: isinstance(value, type) and attrs.has(value))
_ATTRIBUTES: Mapping[str, _Want] = {
    "path": _ROUTE,
    "stored_path": _ROUTE,
    "items_path": _ROUTE,
    "paths": _Want(
        "a tuple of paths that begin with /",
        lambda value: isinstance(value, tuple) and bool(value) and all(map(_ROUTE.fits, value)),
    ),
    "routes": _Want("a mapping of paths that begin with / to GET, POST and DELETE", _are_routes),
    "header": _Want("a string", lambda value: value is None or isinstance(value, str)),
    "framing": _Want("sse or ndjson", lambda value: value in ("sse", "ndjson")),
    "any_content_type": _Want("True or False", lambda value: isinstance(value, bool)),
    "count_path": _ROUTE,
    "greeting": _Want("a string", lambda value: isinstance(value, str)),
    "counted": _Want("a string", lambda value: value is None or isinstance(value, str)),
    "controlled": _Want("a string", lambda value: value is None or isinstance(value, str)),
    "prompt_param": _Want("a string", lambda value: isinstance(value, str)),
    "closed": _Want("True or False", lambda value: isinstance(value, bool)),
    "request": _TABLE,
    "stored_query": _TABLE,
    "items_query": _TABLE,
    "answers": _Want(
        "a mapping to attrs classes",
        lambda value: isinstance(value, Mapping) and all(map(_TABLE.fits, value.values())),
    ),
}


@attrs.frozen
class Unfit(Exception):
    """An object is not all of the adapter that it is meant to be. ``words`` go behind its name."""

    words: str


@attrs.frozen(kw_only=True)
class Served:
    """A checked adapter under each kind that it is of; None under the others."""

    generation: GenerationAdapter | None = None
    keeping: KeepingAdapter | None = None
    listing: ListingAdapter | None = None
    routes: RouteAdapter | None = None
    name: str = ""
    distribution: str = ""
    """Whose it is: the entry point's name, and the distribution that declares it."""

    @property
    def adapter(self) -> object:
        """The adapter, of whichever kind."""
        return self.generation or self.listing or self.routes

    @property
    def header(self) -> str | None:
        """The request header that selects it, where another protocol may serve the same paths."""
        return getattr(self.routes, "header", None)

    @property
    def patterns(self) -> tuple[str, ...]:
        """The Tornado patterns of all its routes."""
        found: tuple[str, ...] = () if self.generation is None else (self.generation.path,)
        found += () if self.count_path is None else (self.count_path,)
        found += () if self.control_path is None else (self.control_path,)
        found += () if self.keeping is None else (self.keeping.stored_path, self.keeping.items_path)
        found += () if self.routes is None else tuple(self.routes.routes)
        return found + (() if self.listing is None else self.listing.paths)

    @property
    def count_path(self) -> str | None:
        """Where prompts of a generating protocol are counted, if anywhere."""
        own: str | None = getattr(self.generation, "count_path", None)
        if own is not None or self.generation is None or getattr(self.generation, "counted", None) is None:
            return own
        return f"{self.generation.path}/input_tokens"

    @property
    def control_path(self) -> str | None:
        """Where the reasoning of a running answer is ended, if anywhere; its group is the answer's id."""
        if getattr(self.generation, "controlled", None) is None or self.generation is None:
            return None
        return f"{self.generation.path}/([^/]+)/answer"


def served(adapter: Any) -> Served:
    """Check ``adapter``, whose kind is told by the members that it has. Raises Unfit for the first fault."""
    kind = _kind(adapter)
    if not inspect.getdoc(type(adapter)):
        raise Unfit("has no docstring, from which its routes are described")
    for name in (*_members(kind), *DIALECT):
        _check_member(adapter, name, kind)
    if hasattr(adapter, "count_path") and not hasattr(adapter, "counts"):
        raise Unfit("lacks counts, which answers its count_path")
    if kind is RouteAdapter:
        return Served(routes=adapter)
    if kind is ListingAdapter:
        return Served(listing=adapter)
    return Served(generation=adapter, keeping=adapter if kind is KeepingAdapter else None)


def _check_member(adapter: Any, name: str, kind: type) -> None:
    if not hasattr(adapter, name):
        if name in OPTIONAL:
            return
        raise Unfit(f"lacks {name}, which a {kind.__name__} has")
    found = getattr(adapter, name)
    want = _ATTRIBUTES.get(name)
    if want is None:
        _check_call(found, name, getattr(kind, name, None) or getattr(Dialect, name))
    elif not want.fits(found):
        raise Unfit(f"has a {name} that is not {want.words}")


def _check_call(found: object, name: str, wanted: Callable[..., object]) -> None:
    """A method must take what it will be given, which is positional."""
    if not callable(found):
        raise Unfit(f"has a {name} that cannot be called")
    given = [word for word in inspect.signature(wanted).parameters if word != "self"]
    try:
        inspect.signature(found).bind(*given)
    except TypeError:
        raise Unfit(f"has a {name} that does not take ({', '.join(given)})") from None


def _kind(adapter: object) -> type:
    """A member that only keeping adapters have is a word of its own; else what the most members speak for."""
    if hasattr(adapter, "routes"):
        return RouteAdapter
    generation, listing = _members(GenerationAdapter), _members(ListingAdapter)
    if _count(adapter, _members(KeepingAdapter) - generation) and _count(adapter, generation):
        return KeepingAdapter
    return ListingAdapter if _count(adapter, listing) > _count(adapter, generation) else GenerationAdapter


def _count(adapter: object, members: Set[str]) -> int:
    return sum(hasattr(adapter, name) for name in members - OPTIONAL)


@functools.cache
def _members(kind: type) -> Set[str]:
    """The names that a kind declares, in their order."""
    declared = (
        name
        for each in reversed(kind.__mro__)
        if each not in (object, Protocol, Generic)
        for name in (*inspect.get_annotations(each), *vars(each))
    )
    return dict.fromkeys(name for name in declared if not name.startswith("_")).keys()
