"""What the doctor has found."""

from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """about: what was looked at, as the config calls it. way_out: what to do; None where there is nothing to."""

    about: str
    state: Literal["ok", "warning", "wrong"]
    found: str
    way_out: str | None = None


def ok(about: str, found: str) -> Finding:
    return Finding(about, "ok", found)


def warning(about: str, found: str, way_out: str) -> Finding:
    return Finding(about, "warning", found, way_out)


def wrong(about: str, found: str, way_out: str) -> Finding:
    return Finding(about, "wrong", found, way_out)
