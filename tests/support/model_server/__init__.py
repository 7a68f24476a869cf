"""A model server in three dialects for tests and benchmarks: strict, scripted, and without a network."""

from tests.support.model_server.server import MODELS, WINDOW, Fault, ModelServer, ReceivedRequest, Script

__all__ = ["MODELS", "WINDOW", "Fault", "ModelServer", "ReceivedRequest", "Script"]
