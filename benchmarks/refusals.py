"""`python -m benchmarks.refusals`: what an agent pays for a window that nobody states.

An upstream takes 40,000 tokens and says no number where it refuses more; the config or the table promises more, or
nothing is known. For each of the six settings, and where the window is known, in each dialect: requests that the
upstream refused, records made, and the tokens that were sent in vain.
"""

from __future__ import annotations

import asyncio

from rich.console import Console
from rich.table import Table

from tests.support.dialects import WRITERS
from tests.support.refusing import KNOWN, REFUSALS, SETTINGS, play


def main() -> None:
    found = Table("dialect", "window", "requests", "refused", "passed on", "records", "tokens", "in vain")
    for writer in WRITERS:
        for setting in (*KNOWN, *SETTINGS):
            played = asyncio.run(play(writer, setting, REFUSALS[writer.dialect.name][0]))
            counts = (played.requests, played.refused, played.passed_on, played.records)
            tokens = (played.tokens, played.tokens_in_vain)
            found.add_row(writer.dialect.name, setting.name, *map(str, counts), *(f"{each:,}" for each in tokens))
    Console(width=120).print(found)


if __name__ == "__main__":
    main()
