"""Formats of providers' keys, from `formats.toml`. A key of a known provider needs no name next to it."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from policies.tables import read_table

# Conditions before a key: no letter or digit, except the letter of an escape (`\nsk-`).
_LEFT = {
    "": re.compile(r"(?<![\w-])|(?<=\\[nrt])", re.ASCII),
    "base64": re.compile(r"(?<![\w+/-])|(?<=\\[nrt])", re.ASCII),
    "any": re.compile(""),
}


class Format(NamedTuple):
    """A format of keys: `lead` characters precede `begin`, and `left` matches at the first of them."""

    kind: str
    left: re.Pattern[str]
    pattern: re.Pattern[str]
    lead: int


def _format(row: Mapping[str, str], begin: str) -> Format:
    pattern = re.compile(row.get("lead", "") + re.escape(begin) + row["pattern"], re.ASCII)
    return Format(row["kind"], _LEFT[row.get("left", "")], pattern, int(row.get("lead_length", 0)))


FORMATS = {
    begin: _format(row, begin)
    for row in read_table("policies.secrets", "formats")["formats"]
    for begin in row["begins"]
}
"""The formats by the beginnings of their keys."""
