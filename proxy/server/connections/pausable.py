"""Flow control where the connection is another's."""

import asyncio


class Pausable:
    """Reading goes on until it is paused, writing waits while it is."""

    def __init__(self) -> None:
        # Beside the events, since both are looked at for every piece, and asking an event takes a call.
        self.read_paused = self.write_paused = False
        self._may_read, self._may_write = asyncio.Event(), asyncio.Event()
        self._may_read.set()
        self._may_write.set()

    def pause_reading(self) -> None:
        self.read_paused = True
        self._may_read.clear()

    def resume_reading(self) -> None:
        self.read_paused = False
        self._may_read.set()

    async def reading(self) -> None:
        """Return when there is room to read into."""
        await self._may_read.wait()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._may_write.clear()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._may_write.set()

    async def drain(self) -> None:
        """Return when there is room to write."""
        await self._may_write.wait()
