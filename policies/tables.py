"""Loading of the tables of this package, which can be extended without programming."""

import tomllib
from importlib.resources import files
from typing import Any


def read_table(package: str, name: str) -> dict[str, Any]:
    """Return a TOML file of a package of policies. name: with its folder below the package, without `.toml`."""
    return tomllib.loads(files(package).joinpath(f"{name}.toml").read_text("utf-8"))
