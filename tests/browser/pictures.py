"""Makes README's pictures of the dashboard from the demo's session: `make pictures`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from proxy.cli.demo.session import demo_stage
from tests.support.browser import browser

FOLDER = Path(__file__).parents[2] / "docs/pictures"
_WIDTH, _TALLEST = 1_180, 920


async def main() -> None:
    async with demo_stage() as stage:
        _ = [step async for step in stage.play()]
        await asyncio.to_thread(_take, stage.dashboard)


def _take(link: str) -> None:
    with browser() as chromium:
        chromium.open(link, _WIDTH)
        chromium.keep_picture("overview", FOLDER, _WIDTH, _TALLEST)
        chromium.open(link.partition("?")[0] + "sessions", _WIDTH)
        chromium.click("split-the-invoices")
        chromium.keep_picture("session", FOLDER, _WIDTH, _TALLEST)


if __name__ == "__main__":
    asyncio.run(main())
