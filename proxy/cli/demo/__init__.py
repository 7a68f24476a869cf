"""`concertina demo`: the proxy shown on a long session, with a model server of its own to run offline."""

from proxy.cli.demo.session import run_demo

__all__ = ["run_demo"]
