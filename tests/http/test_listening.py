"""listen(): ports, addresses, and descriptors."""

from __future__ import annotations

import gc
import resource
import socket
from typing import TYPE_CHECKING

import pytest
from maple_testing.guard import HANG_GUARD

from maple.http.server import AddressUnusable, _affordable, listen
from maple.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.http.conftest import LiveServer, Serve


def test_port_0_takes_a_free_port_and_says_which(serve: Serve) -> None:
    """Two servers, two ports."""
    first, second = serve(), serve()
    assert 0 < first.port != second.port > 0


LEAK = "ignore::pytest.PytestUnraisableExceptionWarning"  # bind_sockets forgets the socket it could not bind


@pytest.mark.filterwarnings(LEAK)
def test_a_port_in_use_is_one_line(server: LiveServer) -> None:
    """The start fails with the reason, not with a traceback's worth of it."""

    async def again() -> None:
        listen(server.services, Settings(port=server.port))

    with pytest.raises(AddressUnusable, match=f"port {server.port}: Address already in use") as caught:
        server.wait(again())
    assert "\n" not in str(caught.value)
    del caught
    gc.collect()


@pytest.mark.filterwarnings(LEAK)
def test_a_host_that_is_not_here_is_one_line(server: LiveServer) -> None:
    """An address of another machine."""

    async def elsewhere() -> None:
        listen(server.services, Settings(host="192.0.2.1", port=0))

    with pytest.raises(AddressUnusable, match=r"192\.0\.2\.1"):
        server.wait(elsewhere())
    gc.collect()


def test_ipv6_works_where_there_is_any(serve: Serve) -> None:
    """With an address as the Host."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    server = serve(host="::1")
    with socket.create_connection(("::1", server.port), timeout=HANG_GUARD) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: [::1]:80\r\n\r\n")
        assert server.read_answer(raw).status == 200


@pytest.fixture
def descriptors() -> Iterator[tuple[int, int]]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield limits
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_the_descriptor_limit_is_raised_for_the_connections(descriptors: tuple[int, int]) -> None:
    """A shell's default of 256 or 1,024 would run out first."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, descriptors[1]))
    assert _affordable(1024) == 1024
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 1024


def test_where_it_cannot_be_raised_fewer_connections_are_taken(
    descriptors: tuple[int, int], log_lines
) -> None:
    """And the log says so: running out would hurt running requests."""
    wanted = 10**9
    assert descriptors[1] == resource.RLIM_INFINITY or _affordable(wanted) < descriptors[1]
    if descriptors[1] != resource.RLIM_INFINITY:
        assert [line["event"] for line in log_lines()] == ["http.few_descriptors"]
