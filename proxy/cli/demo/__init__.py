"""`concertina demo`: the proxy in a long session, with its own model server to run offline."""

from proxy.cli.demo.session import run_demo

__all__ = ["run_demo"]
