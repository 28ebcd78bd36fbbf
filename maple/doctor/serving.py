"""What serves: plugins, keys and the port."""

from __future__ import annotations

import errno
import http.client
import ipaddress
import json
import os
from collections.abc import Callable

from maple_plugins.errors import ParserError
from maple_plugins.registry import reasoning_parser, tool_parser
from maple_protocols.registry import ProtocolError, protocols
from tornado.netutil import bind_sockets

from maple.doctor.check import Check, Finding
from maple.http.keys import Keyring, KeysUnusable
from maple.http.routes import TAKEN

_SECONDS = 2.0
_WAYS_OUT = {
    errno.EADDRINUSE: "end what listens there (ss -ltnp shows it), or --port 0 for a free one",
    errno.EACCES: "ports below 1024 are the system's: take a higher one behind a proxy",
    errno.EADDRNOTAVAIL: "set MAPLE_HOST to an address of this machine, 127.0.0.1 or 0.0.0.0",
}


class PluginCheck(Check):
    """The chosen parsers and all protocols, which are imported as the server imports them."""

    title = "plugins"

    def run(self) -> Finding:
        """Their names, or everything that keeps them from loading."""
        settings = self.settings
        loads: tuple[Callable[[], object], ...] = (
            lambda: reasoning_parser(settings.reasoning_parser),
            lambda: tool_parser(settings.tool_parser),
            lambda: protocols(TAKEN, settings.protocols),
        )
        if faults := [fault for load in loads if (fault := _fault(load))]:
            advice = "repair or uninstall it, or choose another (maple parsers lists them)"
            return Finding(level="bad", text="; ".join(faults), advice=advice)
        count = len({each.name for each in protocols(TAKEN, settings.protocols)})
        text = f"{settings.reasoning_parser} and {settings.tool_parser}, {count} protocols"
        return Finding(level="good", text=text)


def _fault(load: Callable[[], object]) -> str:
    try:
        load()
    except (ParserError, ProtocolError) as error:
        cause = error.__cause__
        return f"{error} ({type(cause).__name__}: {cause})" if cause is not None else str(error)
    return ""


class KeyCheck(Check):
    """The keys that clients must send."""

    title = "keys"

    def run(self) -> Finding:
        """Whether they can be used, and whether a server that others reach has any."""
        settings = self.settings
        try:
            keyring = Keyring.open(settings.api_key, settings.api_key_file)
        except KeysUnusable as error:
            advice = "one name:key a line, in a file that the server's user alone can read (chmod 600)"
            return Finding(level="bad", text=str(error), advice=advice)
        if keyring.required:
            return Finding(level="good", text="clients must send one")
        if _is_loopback(settings.host):
            return Finding(level="good", text="none: only this machine reaches the server")
        text = f"none, and whoever reaches {settings.host} may use the server"
        return Finding(level="note", text=text, advice="set MAPLE_API_KEY or MAPLE_API_KEY_FILE")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class PortCheck(Check):
    """The address to listen on, which is tried."""

    title = "port"

    def run(self) -> Finding:
        """Whether it is free. A Maple that listens there already is no fault."""
        host, port = self.settings.host, self.settings.port
        try:
            for each in bind_sockets(port, host):
                each.close()
        except OSError as error:
            return self._refused(error)
        return Finding(level="good", text=f"{host} port {port or 'of any free number'}")

    def _refused(self, error: OSError) -> Finding:
        host, port = self.settings.host, self.settings.port
        if error.errno == errno.EADDRINUSE and _is_maple(host, port):
            text = f"a Maple server listens on {host} port {port} already"
            return Finding(level="note", text=text, advice="a second one needs another --port")
        known = error.errno in _WAYS_OUT
        reason = os.strerror(error.errno) if known and error.errno is not None else str(error)
        advice = (
            _WAYS_OUT[error.errno] if known and error.errno is not None else "set MAPLE_HOST and MAPLE_PORT"
        )
        return Finding(level="bad", text=f"cannot listen on {host} port {port}: {reason}", advice=advice)


def _is_maple(host: str, port: int) -> bool:
    """Whether what listens there says so."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    connection = http.client.HTTPConnection(reached, port, timeout=_SECONDS)
    try:
        connection.request("GET", "/healthz")
        answer = json.loads(connection.getresponse().read(4096))
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
    return isinstance(answer, dict) and answer.get("service") == "maple"
