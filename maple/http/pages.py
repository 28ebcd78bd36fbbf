"""The pages that come with the server, chat and API reference: static, open to all, under a strict policy.

Files are read once, at start, and found by name in a table: no request ever becomes a path on the disk.
"""

from __future__ import annotations

import functools
import hashlib
import pathlib
import re
from collections.abc import Iterator, Mapping

import attrs
from maple_protocols.adapter import Policy
from maple_protocols.dialect import Reply
from tornado.escape import xhtml_escape

from maple.http.api_operation import JSON, Contents, Operation, Operations
from maple.http.application import Route
from maple.http.base import JsonHandler
from maple.http.refused import HostNotAllowed, RouteNotFound
from maple.http.rows import Refusal

CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""A page runs its own files and talks to its own server; nothing else, inline code included."""

HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # keep it, and ask with its ETag whether it still holds
}
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
INDEX = "index.html"
STRANGE_HOST = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Maple Server</title>
<h1>This server does not know the name {host}</h1>
<p>Without a key it answers to addresses and to localhost alone, so that no other site can lead your browser to it.
Whoever runs it can start it with <code>--allowed-hosts {name}</code> (or <code>MAPLE_ALLOWED_HOSTS={name}</code>),
or with a key in <code>MAPLE_API_KEY</code>.</p></html>
"""
"""What a browser is told that came by a name which nobody has allowed."""


@attrs.frozen(kw_only=True)
class Page:
    """One file as it goes out."""

    content: bytes
    media_type: str

    @functools.cached_property
    def etag(self) -> str:
        """A strong one, quoted."""
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'


def read_pages(folder: pathlib.Path) -> Mapping[str, Page]:
    """Every file of a folder that has a known type, by its path from there."""
    return {
        file.relative_to(folder).as_posix(): Page(
            content=file.read_bytes(), media_type=MEDIA_TYPES[file.suffix]
        )
        for file in sorted(folder.rglob("*"))
        if file.suffix in MEDIA_TYPES
    }


class ForBrowsers(JsonHandler):
    """What leads to pages: open to all, and a person who may not come in is told in a page how to."""

    needs_key = False
    is_routine = True

    def _told(self, found: Refusal, error: BaseException) -> Reply:
        if not isinstance(error, HostNotAllowed) or "text/html" not in self.request.headers.get("Accept", ""):
            return super()._told(found, error)
        host, name = (xhtml_escape(text[:64]) for text in (error.host, self.request.host_name))
        headers = {**HEADERS, "Content-Type": MEDIA_TYPES[".html"]}
        return Reply(status=found.status, body=STRANGE_HOST.format(host=host, name=name), headers=headers)


class PageHandler(ForBrowsers):
    """GET one of a folder's pages; the index where the path names none."""

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """GET, in the types that the route's pages have."""
        pages: Mapping[str, Page] = route.options["pages"]
        names = [INDEX] if route.parameter is None else [name for name in pages if name != INDEX]
        types = sorted({pages[name].media_type.partition(";")[0] for name in names})
        operation = Operation(
            summary=route.summary,
            tag="Pages",
            answers={
                200: {kind: {"type": "object" if kind == JSON else "string"} for kind in types},
                304: {},
            },
            parameter={"enum": names},
            refusals=(RouteNotFound,) if route.parameter else (),
            needs_key=cls.needs_key,
        )
        return {"get": operation}

    def initialize(self, route: str, pages: Mapping[str, Page]) -> None:  # type: ignore[override]  # Tornado passes each route its own keywords
        """Called by Tornado with the route's options."""
        super().initialize(route)
        self.pages = pages
        self._etag: str | None = None

    async def respond(self, *groups: str) -> None:
        """The file. Tornado makes it a 304 for a client that has it already."""
        if not groups and self._path_sent().endswith("/"):
            redirect(self, f"..{self.request.path}")
            return
        page = self.pages[groups[0] if groups else INDEX]
        for name, value in HEADERS.items():
            self.set_header(name, value)
        self.set_header("Content-Type", page.media_type)
        self._etag = page.etag
        self.write(page.content)

    def compute_etag(self) -> str | None:
        """The page's; a redirect has none."""
        return self._etag

    def _path_sent(self) -> str:
        """The path with the slash that routing ignores: a page's relative links would be resolved by it."""
        return (self.request.uri or "").partition("?")[0]


class FrontHandler(ForBrowsers):
    """GET /: browsers are sent to the chat page, and others greeted where a protocol does that."""

    def initialize(self, route: str, greeting: str | None, page: bool) -> None:  # type: ignore[override]  # Tornado passes each route its own keywords
        """Called by Tornado with the route's options."""
        super().initialize(route)
        self._greeting = greeting
        self._page = page

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """GET, which leads elsewhere."""
        greeted = route.options["greeting"] is not None
        summary = (
            "Sends browsers to the chat page, and greets others."
            if greeted
            else "Sends browsers to the chat page."
        )
        answers: Mapping[int, Contents] = {
            302: {},
            **({200: {"text/plain": {"type": "string"}}} if greeted else {}),
        }
        return {"get": Operation(summary=summary, tag="Pages", answers=answers, needs_key=cls.needs_key)}

    async def respond(self, *groups: str) -> None:
        """A redirect, or the greeting."""
        asks_page = self._page and "text/html" in self.request.headers.get("Accept", "")
        if self._greeting is None or asks_page:
            redirect(self, "/ui")
        else:
            self.write_reply(Reply(body=self._greeting))


def redirect(handler: JsonHandler, location: str) -> None:
    """Answer 302 with nothing but the place to go to."""
    handler.set_status(302)
    handler.clear_header("Content-Type")
    handler.set_header("Location", location)


def page_routes(path: str, folder: pathlib.Path, title: str) -> Iterator[Route]:
    """A folder's index at ``path``, and its other files below. A file that is not there has no route."""
    pages = read_pages(folder)
    names = "|".join(re.escape(name) for name in pages if name != INDEX)
    options = {"pages": pages}
    yield Route(pattern=path, handler=PageHandler, options=options, summary=f"{title}.")
    yield Route(
        pattern=f"{path}/({names})",
        handler=PageHandler,
        options=options,
        summary=f"{title}: one of its files.",
    )
