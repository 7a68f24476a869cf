"""The paths of a dialect, behind /v1 or wherever else a client has its API."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

Does = Literal["converse", "count", "compact"]

_MODEL = "{model}"
# What a segment may hold as it is (RFC 3986, section 3.3).
_SAFE = ":@!$&'()*+,="


@dataclass(frozen=True, slots=True)
class DialectPath:
    """One path: its segments, one of which may hold `{model}` and then names the model.

    does:     what requests to it ask for.
    stream:   whether they are answered by streams; None where their bodies say so.
    is_known: whether it is this one behind any prefix: where only one word tells, others than models' servers may have
              a path that ends with it too.
    """

    names: tuple[str, ...]
    does: Does = "converse"
    stream: bool | None = None
    is_known: bool = False

    def model_in(self, names: Sequence[str]) -> str | None:
        """The model that these segments name, empty where this path names none; None where they are another path.

        Plain words are known in any case, as lenient servers read them; what stands in a segment with the model is not.
        """
        model = ""
        if len(names) != len(self.names):
            return None
        for pattern, name in zip(self.names, names, strict=True):
            before, mark, behind = pattern.partition(_MODEL)
            if not mark:
                if name.casefold() != pattern:
                    return None
                continue
            model = name[len(before) : len(name) - len(behind)]
            if not model or "/" in model or name != before + model + behind:
                return None
        return model

    def naming(self, model: str) -> tuple[str, ...]:
        """The segments for this model, as they are sent."""
        return tuple(name.replace(_MODEL, quote(model, safe=_SAFE)) for name in self.names)

    @property
    def pattern(self) -> str:
        """Of all such paths, as file names are matched."""
        return "/".join(name.replace(_MODEL, "*") for name in self.names)
