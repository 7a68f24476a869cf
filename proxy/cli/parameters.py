"""Parameters of several commands."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from proxy.dialects.table import names

ConfigPath = Annotated[
    Path | None, Parameter(help="Config file; without it $CONCERTINA_CONFIG, ./config.yaml, or the built-in defaults.")
]
Flag = Annotated[bool, Parameter(negative=())]
AsJson = Annotated[bool, Parameter(name="--json", negative=())]
if TYPE_CHECKING:
    DialectName = str
else:  # the table of dialects defines the choices
    DialectName = Literal[names()]
