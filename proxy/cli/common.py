"""Shared parts of commands: config, tenant and output."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from proxy.callers.tenants import Caller, Tenants
from proxy.config.errors import suggest
from proxy.config.loading import Config, ConfigError, load
from proxy.telemetry.text_lines import printable

CONFIG = Path("config.yaml")
_DEFAULTS = "built-in defaults"
_PIPED = 1_000
_T = TypeVar("_T")


def find_config(path: Path | None) -> Path | None:
    """Return the config file to read; None for the built-in defaults.

    It is the named file, else that of CONCERTINA_CONFIG, else the directory's.
    """
    if path is None and (variable := os.environ.get("CONCERTINA_CONFIG")):
        return Path(variable)
    return CONFIG if path is None and CONFIG.is_file() else path


def name_of(path: Path | None) -> str:
    """Return the name of a config in messages."""
    return str(find_config(path) or _DEFAULTS)


def load_config(path: Path | None) -> Config:
    """Load the config. On problems, print them to standard error and exit with code 1."""
    try:
        return load(find_config(path), os.environ)
    except ConfigError as error:
        for problem in error.problems:
            err(str(problem))
        sys.exit(1)


def caller_of(config: Config, tenant: str, policy: str | None = None) -> Caller:
    """Return a caller of this tenant, under another policy if one is named."""
    caller = Tenants(config).operator_of(tenant)
    if caller is None:
        fail(f"--tenant {tenant}: no tenant has this name; {suggest(tenant, config.tenants, 'known names')}")
    if policy is None:
        return caller
    if policy not in config.policies:
        fail(f"--policy {policy}: no policy has this name; {suggest(policy, config.policies, 'known names')}")
    return replace(caller, policy_name=policy, policy=config.policies[policy])


def count_settings(config: Config) -> str:
    """Return how many upstreams, policies and tenants a config has."""
    counts = {"upstream": config.upstreams, "policy": config.policies, "tenant": config.tenants}
    plurals = {"policy": "policies"}
    return ", ".join(
        f"{len(items)} {name if len(items) == 1 else plurals.get(name, name + 's')}" for name, items in counts.items()
    )


def console(*, stderr: bool = False) -> Console:
    """Return the console. A file or another program gets complete lines: nothing is cut or wrapped."""
    result = Console(stderr=stderr, no_color=bool(os.environ.get("NO_COLOR")), highlight=False, markup=False)
    if not result.is_terminal:
        result.width = _PIPED
    return result


def output(result: _T, show: Callable[[_T, Console], None], *, as_json: bool, indent: int = -1) -> None:
    """Print a result to standard output, as JSON or with `show` for people."""
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(result), indent=indent).decode())
    else:
        show(result, console())


def print_table(table: Table, console: Console) -> None:
    """Print a table. A file or another program gets one line per row, its columns two spaces apart."""
    if console.is_terminal:
        console.print(table)
        return
    columns = [[str(column.header), *map(str, column.cells)] for column in table.columns]
    widths = [max(map(cell_len, cells)) for cells in columns]
    is_right = [column.justify == "right" for column in table.columns]
    for row in zip(*columns, strict=True):
        cells = zip(row, widths, is_right, strict=True)
        console.print("  ".join(_padded(*cell) for cell in cells).rstrip(), soft_wrap=True)


def _padded(cell: str, width: int, is_right: bool) -> str:
    spaces = " " * (width - cell_len(cell))
    return spaces + cell if is_right else cell + spaces


def plain(text: str | None) -> str:
    """Return a text on one line, without control sequences for a terminal."""
    return printable(text or "")


def moment(seconds: float) -> str:
    """Return a time in UTC, to the minute."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "minutes").removesuffix("+00:00")


def err(text: str) -> None:
    """Print a text to standard error, without control sequences."""
    for line in text.split("\n"):
        print(plain(line), file=sys.stderr)


def fail(line: str) -> NoReturn:
    """Print a line to standard error and exit with code 1."""
    err(line)
    sys.exit(1)
