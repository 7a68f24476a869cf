"""A scripted upstream that keeps the last body it received, and the number of bodies, and answers next to nothing."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "input_tokens": 1, "output_tokens": 1}
_ANSWERS: dict[str, dict[str, Any]] = {
    "messages": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "ok"}],
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
    "responses": {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "model": "m",
        "output": [
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "ok", "annotations": []}],
            }
        ],
        "usage": _USAGE,
    },
    "completions": {
        "id": "c_1",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    },
}


class Upstream(ThreadingHTTPServer):
    """Listens on a free port of 127.0.0.1. bodies: what was received since they were last taken."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def take(self) -> list[bytes]:
        """Return the bodies received since the last call."""
        taken, self.bodies = self.bodies, []
        return taken


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        last = self.path.partition("?")[0].rsplit("/", 1)[-1]
        if last in _ANSWERS:
            assert isinstance(self.server, Upstream)
            self.server.bodies.append(body)
        self._send(200 if last in _ANSWERS else 404, _ANSWERS.get(last, {"error": {"message": "no such path"}}))

    def do_GET(self) -> None:
        self._send(404, {"error": {"message": "no such path"}})

    def log_message(self, *args: object) -> None:
        """Write no log."""

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
