"""Who is asking: the host name that was used, the page behind the request, the address behind a proxy."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from tornado.httputil import HTTPHeaders, HTTPServerRequest

from maple.http.services import Network

IGNORED = "X-Maple-Ignored"
"""Names what a request held in vain (see ``wire.ignored_header``)."""
EXPOSED_HEADERS = f"X-Request-Id, Retry-After, {IGNORED}"
PREFLIGHT_SECONDS = "600"

_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2000}")


def is_own_host(host_name: str, allowed: Iterable[str]) -> bool:
    """Whether a Host (port removed, lower case) can only have been meant for this server.

    A page that rebinds its own name to a loopback address still sends its name; it cannot send an address.
    """
    name = host_name.removesuffix(".")
    return name == "localhost" or name in allowed or _address(name) is not None


def is_foreign_page(request: HTTPServerRequest, allowed: frozenset[str]) -> bool:
    """Whether a browser sent this for a page that is neither allowed nor the server's own.

    A POST without a body needs no preflight: that a page may not read the answer does not keep it from asking.
    """
    origin = request.headers.get("Origin", "").lower()
    if {origin, "*"} & allowed:
        return False
    if not origin:
        return request.headers.get("Sec-Fetch-Site", "").lower() == "cross-site"
    scheme, _, site = origin.partition("://")
    port = _DEFAULT_PORTS.get(scheme, "")
    return site.removesuffix(port) != request.host.lower().removesuffix(port)


def cors_headers(origin: str | None, allowed: frozenset[str]) -> dict[str, str]:
    """The headers that let a page of an allowed origin read the answer; never with credentials."""
    if not allowed:
        return {}
    if origin is None or not ({origin.lower(), "*"} & allowed):
        return {"Vary": "Origin"}
    return {
        "Vary": "Origin",
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": EXPOSED_HEADERS,
    }


def preflight_headers(methods: str, wanted_headers: str) -> dict[str, str]:
    """What a preflight from an allowed origin is told: the route's methods, and the headers it wants."""
    headers = {"Access-Control-Allow-Methods": methods, "Access-Control-Max-Age": PREFLIGHT_SECONDS}
    if _HEADER_NAMES.fullmatch(wanted_headers):
        headers["Access-Control-Allow-Headers"] = wanted_headers
    return headers


def remote_address(peer: str, headers: HTTPHeaders, proxies: tuple[Network, ...]) -> str:
    """The client's address, for logs: a listed proxy's last X-Forwarded-For hop, else the peer itself."""
    hop = _last(headers, "X-Forwarded-For")
    if not _is_listed(peer, proxies):
        return peer
    return hop if _address(hop) is not None else peer


def remote_scheme(peer: str, headers: HTTPHeaders, proxies: tuple[Network, ...]) -> str:
    """``https`` where a listed proxy says that its client used it, else ``http``."""
    scheme = _last(headers, "X-Forwarded-Proto").lower()
    return "https" if scheme == "https" and _is_listed(peer, proxies) else "http"


def _last(headers: HTTPHeaders, name: str) -> str:
    return headers.get(name, "").rpartition(",")[2].strip()


def _is_listed(peer: str, proxies: tuple[Network, ...]) -> bool:
    address = _address(peer) if proxies else None
    return address is not None and any(address in network for network in proxies)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
