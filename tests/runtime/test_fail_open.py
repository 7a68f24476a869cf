"""The rim catches every fault of ours, and lets pass what is not one."""

from __future__ import annotations

import asyncio
import io
import time

import pytest

from proxy.errors import InvalidRequestError
from proxy.runtime.fail_open import FailOpen
from proxy.telemetry.log import open_log

pytestmark = pytest.mark.anyio


@pytest.fixture
def logged() -> io.BytesIO:
    return io.BytesIO()


@pytest.fixture
def fail_open(logged: io.BytesIO) -> FailOpen:
    return FailOpen(open_log("info", time.time, logged).fault)


async def failing(error: BaseException) -> str:
    raise error


@pytest.mark.parametrize("error", [ValueError("secret"), RecursionError(), asyncio.CancelledError()])
async def test_a_fault_of_ours_is_logged_and_something_else_done(
    fail_open: FailOpen, logged: io.BytesIO, error: BaseException
) -> None:
    assert await fail_open.run(failing(error), "otherwise") == "otherwise"
    assert type(error).__name__.encode() in logged.getvalue()
    assert b"secret" not in logged.getvalue()


@pytest.mark.parametrize("error", [ValueError("secret"), KeyError("secret"), OSError("secret"), RecursionError()])
def test_a_fault_of_a_call_is_logged_and_something_else_returned(
    fail_open: FailOpen, logged: io.BytesIO, error: Exception
) -> None:
    def work() -> str:
        raise error

    assert fail_open.call(work, "otherwise") == "otherwise"
    assert type(error).__name__.encode() in logged.getvalue()
    assert b"secret" not in logged.getvalue()


async def test_what_is_the_clients_to_see_passes(fail_open: FailOpen, logged: io.BytesIO) -> None:
    with pytest.raises(InvalidRequestError):
        await fail_open.run(failing(InvalidRequestError("your fault")), "otherwise")
    assert logged.getvalue() == b""


async def test_a_request_that_is_to_end_ends(fail_open: FailOpen, logged: io.BytesIO) -> None:
    begun = asyncio.Event()

    async def work() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    working = asyncio.create_task(fail_open.run(work(), "otherwise"))
    await begun.wait()
    working.cancel()
    await asyncio.wait((working,))
    assert working.cancelled()
    assert logged.getvalue() == b""
