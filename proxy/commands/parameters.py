"""What several commands take."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

ConfigPath = Annotated[
    Path | None, Parameter(help="Config file; without it ./config.yaml, else the built-in defaults.")
]
Flag = Annotated[bool, Parameter(negative=())]
AsJson = Annotated[bool, Parameter(name="--json", negative=())]
DialectName = Literal["chat", "responses", "messages"]
