"""The paths of a dialect, after /v1 or any other prefix of a client."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

Does = Literal["converse", "count", "compact"]

_MODEL = "{model}"
# Characters that a segment may hold unescaped (RFC 3986, section 3.3).
_SAFE = ":@!$&'()*+,="


@dataclass(frozen=True, slots=True)
class DialectPath:
    """One path as its segments. One segment may hold `{model}` and then names the model.

    does:     the kind of its requests.
    stream:   True if the responses are streams; None if the bodies decide.
    is_known: True if it is recognized after any prefix. Other servers may also have paths that end with a single common
              word.
    """

    names: tuple[str, ...]
    does: Does = "converse"
    stream: bool | None = None
    is_known: bool = False

    def model_in(self, names: Sequence[str]) -> str | None:
        """Return the model that these segments name, empty if this path names none; None if they are another path.

        Plain words match in any case, as lenient servers read them. A segment with the model has to match exactly.
        """
        model = ""
        if len(names) != len(self.names):
            return None
        for pattern, name in zip(self.names, names, strict=True):
            prefix, mark, suffix = pattern.partition(_MODEL)
            if not mark:
                if name.casefold() != pattern:
                    return None
                continue
            model = name[len(prefix) : len(name) - len(suffix)]
            if not model or "/" in model or name != prefix + model + suffix:
                return None
        return model

    def naming(self, model: str) -> tuple[str, ...]:
        """Return the segments for this model, as sent."""
        return tuple(name.replace(_MODEL, quote(model, safe=_SAFE)) for name in self.names)

    @property
    def pattern(self) -> str:
        """Return a pattern of all such paths, in the syntax of file name patterns."""
        return "/".join(name.replace(_MODEL, "*") for name in self.names)
