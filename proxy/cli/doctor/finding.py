"""A finding of `concertina doctor`."""

from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """One line of the doctor.

    about: the subject, in the config's words. way_out: the remedy; None if there is nothing to do.
    """

    about: str
    state: Literal["ok", "warning", "wrong"]
    found: str
    way_out: str | None = None


def ok(about: str, found: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(about, "ok", found)


def warning(about: str, found: str, way_out: str) -> Finding:
    """Return a finding that does not break requests."""
    return Finding(about, "warning", found, way_out)


def wrong(about: str, found: str, way_out: str) -> Finding:
    """Return a finding that breaks requests."""
    return Finding(about, "wrong", found, way_out)
