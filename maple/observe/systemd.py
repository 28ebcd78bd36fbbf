"""Telling systemd how the server does: datagrams to the socket that it names (sd_notify(3)), if it names one."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping

import attrs


@attrs.frozen
class Notifier:
    """Sends states to a service manager; ``address`` is empty where there is none. Never blocks."""

    address: str = ""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Notifier:
        """As ``NOTIFY_SOCKET`` says: a path, or an abstract name that begins with ``@``."""
        address = environ.get("NOTIFY_SOCKET", "")
        return cls(f"\0{address[1:]}" if address.startswith("@") else address)

    def ready(self) -> None:
        """The port answers."""
        self._send("READY=1")

    def alive(self) -> None:
        """Neither the loop nor the engine is stuck: for WatchdogSec."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The drain has begun."""
        self._send("STOPPING=1")

    def _send(self, state: str) -> None:
        if not self.address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.setblocking(False)
            manager.sendto(state.encode(), self.address)
