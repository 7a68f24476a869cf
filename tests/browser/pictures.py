"""Makes README's pictures from the demo's session, and an animation of its tokens: `make pictures`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.cli.demo.chat_server import WINDOW
from proxy.cli.demo.session import demo_stage
from tests.support.browser import browser

if TYPE_CHECKING:
    from proxy.cli.demo.show import DemoStep

FOLDER = Path(__file__).parents[2] / "docs/pictures"
_WIDTH, _TALLEST = 1_180, 920
# The animation: its size, its plot, and the seconds of one run and of the pause after it.
_ACROSS, _HIGH, _LEFT, _FLOOR, _TOP = 900, 320, 70, 270, 40
_SECONDS, _PAUSE = 8, 3
_STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#57606a}path{fill:none;stroke-width:2.5;stroke-linejoin:round}"
    ".without{stroke:#8c959f;stroke-dasharray:6 5}.with{stroke:#0f766e}.window{stroke:#cf222e;stroke-width:1.5}"
    ".refused{fill:#cf222e}"
)


async def main() -> None:
    async with demo_stage() as stage:
        steps = [step async for step in stage.play()]
        (FOLDER / "session.svg").write_text(animation(steps), "utf-8")
        await asyncio.to_thread(_take, stage.dashboard)


def _take(link: str) -> None:
    with browser() as chromium:
        chromium.open(link, _WIDTH)
        chromium.keep_picture("overview", FOLDER, _WIDTH, _TALLEST)
        chromium.open(link.partition("?")[0] + "sessions", _WIDTH)
        chromium.click("split-the-invoices")
        chromium.keep_picture("session", FOLDER, _WIDTH, _TALLEST)


def animation(steps: Sequence[DemoStep]) -> str:
    """Return an SVG that draws the tokens of each request, received and sent, as the session goes on."""
    highest = max(step.received for step in steps) * 1.05
    refused = next(step for step in steps if step.direct != "ok")

    def point(number: int, tokens: float) -> tuple[float, float]:
        across = _LEFT + (number - 1) / (len(steps) - 1) * (_ACROSS - _LEFT - 20)
        return round(across, 1), round(_FLOOR - tokens / highest * (_FLOOR - _TOP), 1)

    def line(points: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{x} {y}" for x, y in points)

    without = [point(step.number, step.received) for step in steps]
    sent = [point(step.number, step.sent) for step in steps]
    window = point(1, WINDOW)[1]
    x, y = point(refused.number, refused.received)
    share = _SECONDS / (_SECONDS + _PAUSE)
    moment = round(share * (refused.number - 1) / (len(steps) - 1), 3)
    cover = (
        f'<clipPath id="shown"><rect x="0" y="0" height="{_HIGH}" width="{_ACROSS}">'
        f'<animate attributeName="width" values="{_LEFT};{_ACROSS};{_ACROSS}" keyTimes="0;{share:.3f};1"'
        f' dur="{_SECONDS + _PAUSE}s" repeatCount="indefinite"/></rect></clipPath>'
    )
    appearing = (
        f'<animate attributeName="opacity" values="0;1;1" keyTimes="0;{moment};1" calcMode="discrete"'
        f' dur="{_SECONDS + _PAUSE}s" repeatCount="indefinite"/>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_ACROSS} {_HIGH}" role="img"'
            ' aria-label="The tokens of a session: without Concertina they outgrow the window">',
            f"<style>{_STYLE}</style>{cover}",
            f'<rect width="{_ACROSS}" height="{_HIGH}" rx="8" fill="#ffffff"/>',
            f'<path class="window" d="M{_LEFT} {window}H{_ACROSS - 20}"/>',
            f'<text x="{_LEFT}" y="{window - 8}">context window, {WINDOW:,} tokens</text>',
            f'<text x="{_LEFT}" y="{_FLOOR + 30}">request 1</text>',
            f'<text x="{_ACROSS - 20}" y="{_FLOOR + 30}" text-anchor="end">request {len(steps)}</text>',
            '<g clip-path="url(#shown)">',
            f'<path class="without" d="{line(without)}"/><path class="with" d="{line(sent)}"/></g>',
            f'<g>{appearing}<circle class="refused" cx="{x}" cy="{y}" r="5"/>',
            f'<text class="refused" x="{x - 12}" y="{y - 40}" text-anchor="end">without Concertina: refused at'
            f" request {refused.number}</text></g>",
            f'<text x="{_ACROSS - 20}" y="{without[-1][1] - 10}" text-anchor="end">the history of the client</text>',
            f'<text x="{_ACROSS - 20}" y="{_FLOOR - 8}" text-anchor="end">what the model is sent</text>',
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    asyncio.run(main())
