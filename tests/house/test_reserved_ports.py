"""Ports that tests reserve before a server binds them."""

from __future__ import annotations

import errno
import socket
import struct
import sys

import pytest

from tests.support.servers import reserve_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a bound port is refused to servers too")

# From linux/in.h: the ports of which the system chooses one for this socket, since Linux 6.3.
IP_LOCAL_PORT_RANGE = 51


def confined_to(port: int) -> socket.socket:
    """Return a socket that the system can give this port alone."""
    confined = socket.socket()
    confined.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        confined.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("I", port << 16 | port))
    except OSError:
        pytest.skip("the system chooses among all ports: run Linux 6.3")
    return confined


def test_a_reserved_port_refuses_connections_and_is_given_to_no_other_socket() -> None:
    port = reserve_port()
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
    with socket.create_server(("127.0.0.1", 0)) as listener, confined_to(port) as bound, confined_to(port) as client:
        with pytest.raises(OSError, match="in use"):
            bound.bind(("127.0.0.1", 0))
        assert client.connect_ex(listener.getsockname()) != 0


def test_a_server_binds_a_reserved_port_again_and_again() -> None:
    port = reserve_port()
    for _ in range(2):
        with socket.create_server(("127.0.0.1", port)) as server, socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()
