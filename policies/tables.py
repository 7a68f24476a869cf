"""Reads the tables of this package: files of rows that somebody extends who does not program."""

import tomllib
from importlib.resources import files
from typing import Any


def read_table(package: str, name: str) -> dict[str, Any]:
    """Return a file of TOML in a package of policies. name: with its folder below the package, and without `.toml`."""
    return tomllib.loads(files(package).joinpath(f"{name}.toml").read_text("utf-8"))
