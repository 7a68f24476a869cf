"""TCP keep-alive (RFC 9293, section 3.8.4): probes on quiet connections, for NATs and load balancers."""

import socket
import sys

# Seconds of silence until the first probe. NATs and balancers forget a connection after a minute or more.
_IDLE, _INTERVAL, _PROBES = 45, 15, 4


def keep_alive(connection: socket.socket) -> None:
    """Enable probes on a connection, or on those that a listening socket accepts."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        for option, value in (
            (socket.TCP_KEEPIDLE, _IDLE),
            (socket.TCP_KEEPINTVL, _INTERVAL),
            (socket.TCP_KEEPCNT, _PROBES),
        ):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
