"""The log's stream may be a pipe that nobody reads: that blocks no request."""

from __future__ import annotations

import io
import os
import time
from typing import BinaryIO

import pytest

from proxy.telemetry import line_writer
from proxy.telemetry.line_writer import LineWriter
from proxy.telemetry.log import Log

LINE = b"x" * 999 + b"\n"
# Bytes; a pipe of Linux takes 64 kB.
MORE_THAN_A_PIPE_TAKES = 200


def pipe() -> tuple[BinaryIO, BinaryIO]:
    reads, writes = os.pipe()
    return os.fdopen(reads, "rb"), os.fdopen(writes, "wb", buffering=0)


def test_a_line_is_written_at_once_if_the_stream_takes_it() -> None:
    reader, stream = pipe()
    with reader, stream:
        writer = LineWriter(stream)
        writer.write(LINE)
        assert os.read(reader.fileno(), 5_000) == LINE


def test_lines_wait_in_their_order_while_nobody_reads() -> None:
    reader, stream = pipe()
    with reader, stream:
        writer = LineWriter(stream)
        lines = [b"%d " % at + LINE for at in range(MORE_THAN_A_PIPE_TAKES)] + [b"y" * 100_000 + b"\n", b"end\n"]
        began = time.monotonic()
        for line in lines:
            writer.write(line)
        assert time.monotonic() - began < 5
        assert [reader.readline() for _ in lines] == lines
        writer.write(b"after\n")
        assert reader.readline() == b"after\n"


def test_lines_beyond_a_bound_are_lost_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_writer, "MOST_WAITING", 20)
    reader, stream = pipe()
    with reader, stream:
        log = Log("info", lambda: 0.0, LineWriter(stream), "json")
        for number in range(MORE_THAN_A_PIPE_TAKES):
            log.info("event", number=number, text="x" * 1_000)
        assert log.lost > 0
        written = [reader.readline() for _ in range(MORE_THAN_A_PIPE_TAKES - log.lost)]
        assert written[0].endswith(b"\n")
        log.info("after")
        assert b"after" in reader.readline()


def test_a_stream_that_is_gone_loses_lines_only() -> None:
    reader, stream = pipe()
    log = Log("info", lambda: 0.0, LineWriter(stream), "json")
    reader.close()
    with stream:
        for _ in range(3):
            log.info("event")
    assert log.lost == 3


def test_a_stream_without_a_file_is_no_stream_for_it() -> None:
    with pytest.raises(io.UnsupportedOperation):
        LineWriter(io.BytesIO())
