"""Recorded sessions that somebody uploads, played under several policies: no model is asked, nothing is stored."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import msgspec

from proxy.admin.access import Visitor
from proxy.admin.opened import Opened, named_tenant, under
from proxy.admin.trials.turn import Turn
from proxy.callers.tenants import Caller
from proxy.config.loading import preset_names
from proxy.engine.replay.figures import Replayed
from proxy.engine.replay.recordings import Recording, RecordingError, read_from
from proxy.engine.replay.replay import replay, with_window
from proxy.errors import InvalidRequestError, ShuttingDownError

# Of all files together; as values they take ten times as much.
MOST_REPLAYED = 8_000_000
LEAST_WINDOW = 256
_MOST_SESSIONS = 20
# Requests, each played without a proxy and under every policy.
_MOST_PLAYED = 5_000
_SECONDS = 60.0


class Wanted(msgspec.Struct, frozen=True):
    """What somebody wants played.

    files: what each holds, by its name: a request, a list of messages, or JSON lines of either. policies: names; the
    presets where there is none. model: to price and count for, instead of the recorded one. window: in tokens, instead
    of the known one.
    """

    files: dict[str, str]
    policies: list[str] = []
    model: str | None = None
    window: Annotated[int, msgspec.Meta(ge=LEAST_WINDOW)] | None = None


class Outcome(msgspec.Struct, frozen=True):
    """The figures, and why something was not played."""

    replayed: Replayed
    skipped: list[str]


class _OutOfTimeError(Exception):
    """It takes longer than anybody may have us work for."""


class Replaying:
    """Plays what visitors upload, one after the other."""

    def __init__(self, opened: Callable[[], Opened]) -> None:
        self._find = opened
        self._turn = Turn("Somebody else's sessions are being played; try again when that is done.")

    async def play(self, visitor: Visitor, wanted: Wanted) -> Outcome:
        """In a thread of its own. Raises InvalidRequestError, OverloadedError and ShuttingDownError."""
        opened = self._find()
        caller = named_tenant("", visitor, opened)
        callers = [under(name, caller, opened) for name in dict.fromkeys(wanted.policies or preset_names())]
        return await asyncio.to_thread(self._played, opened, wanted, callers)

    def _played(self, opened: Opened, wanted: Wanted, callers: Sequence[Caller]) -> Outcome:
        with self._turn.taken():
            ends, skipped = time.monotonic() + _SECONDS, list[str]()

            def advance() -> None:
                if opened.is_draining():
                    raise ShuttingDownError
                if time.monotonic() > ends:
                    raise _OutOfTimeError

            recordings = _recordings(wanted.files, wanted.model, skipped)
            _check(recordings, len(callers), skipped)
            config = with_window(opened.config, wanted.window)
            played = replay(opened.open_apart, config, recordings, callers, advance, skipped.append)
            try:
                replayed = asyncio.run(played)
            except _OutOfTimeError:
                raise InvalidRequestError(
                    f"It was not done within {_SECONDS:.0f} seconds; send less, or name fewer policies."
                ) from None
        if not replayed.sessions:
            raise InvalidRequestError(_nothing(skipped))
        return Outcome(replayed, skipped)


def _recordings(files: Mapping[str, str], model: str | None, skipped: list[str]) -> list[Recording]:
    found: list[Recording] = []
    for name, content in files.items():
        try:
            found += read_from(name, content.encode("utf-8", "surrogatepass"), model)
        except RecordingError as error:
            skipped.append(f"{name}: {error}")
    return found


def _check(recordings: Sequence[Recording], policies: int, skipped: Sequence[str]) -> None:
    """Raises InvalidRequestError for nothing, and for more than is played."""
    requests = sum(recording.requests for recording in recordings)
    if not recordings:
        raise InvalidRequestError(_nothing(skipped))
    if len(recordings) > _MOST_SESSIONS or requests * (policies + 1) > _MOST_PLAYED:
        raise InvalidRequestError(
            f"These are {len(recordings)} sessions, of {requests:,} requests to be played {policies + 1} times; at most"
            f" {_MOST_SESSIONS} sessions and {_MOST_PLAYED:,} plays are taken; `concertina replay` takes any number."
        )


def _nothing(skipped: Sequence[str]) -> str:
    return "; ".join(skipped) or "There is nothing to play: upload a file that holds a recorded session."
