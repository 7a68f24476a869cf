"""Presets, and the resolution of policies that extend others."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, reduce
from importlib.resources import files
from types import MappingProxyType
from typing import NamedTuple

from proxy.config.document import parse
from proxy.config.errors import Location, shown_key, suggest

Report = Callable[[Location, str], None]

EXTENDS = "extends"


class Layer(NamedTuple):
    """One policy of the file: the name that it extends, and its own keys."""

    base: str | None
    own: Mapping[str, object]


@cache
def presets() -> Mapping[str, Mapping[str, object]]:
    """Return the built-in policies by name, each with its differences from the defaults."""
    folder = files("policies") / "presets"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    return MappingProxyType(
        {name.removesuffix(".yaml"): parse((folder / name).read_text("utf-8"), name, {}).values for name in names}
    )


def preset_names() -> tuple[str, ...]:
    """Return the names that `extends` and a tenant's `policy` always accept."""
    return tuple(presets())


def resolve(entries: Mapping[str, object], report: Report) -> tuple[dict[str, object], frozenset[str]]:
    """Resolve every policy and preset over what it extends.

    Also return the names of policies whose base is missing.
    """
    layers = {name: layer for name, entry in entries.items() if (layer := _layer(name, entry, report))}
    resolved: dict[str, object] = {name: dict(preset) for name, preset in presets().items()}
    broken = set()
    for name in layers:
        chain, complete = _chain(name, layers, report)
        resolved[name] = reduce(_over, reversed(chain))
        if not complete:
            broken.add(name)
    return resolved, frozenset(broken)


def origins(name: str, entries: Mapping[str, object]) -> dict[str, str]:
    """Return the origin of each setting of a policy by its dotted name: a policy of the file, or a preset.

    Settings that are not in the result have their default.
    """
    layers = {policy: layer for policy, entry in entries.items() if (layer := _layer(policy, entry, _ignore_problem))}
    origin: dict[str, str] = {}
    preset, current = name, name
    while current in layers:
        base, own = layers.pop(current)  # a policy named like a preset extends the preset, not itself
        origin = dict.fromkeys(_dotted_names(own), f"policy {current}") | origin
        preset = current = base or ""
    return dict.fromkeys(_dotted_names(presets().get(preset, {})), f"preset {preset}") | origin


def _ignore_problem(_location: Location, _message: str) -> None:
    """Do nothing: every entry of a config in force is valid."""


def _dotted_names(settings: Mapping[str, object], front: str = "") -> Iterator[str]:
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _dotted_names(value, f"{front}{key}.")
        else:
            yield f"{front}{key}"


def _layer(name: str, entry: object, report: Report) -> Layer | None:
    match entry:
        case None:
            return Layer(None, {})
        case str():
            return Layer(entry, {})
        case dict():
            own = {key: value for key, value in entry.items() if key != EXTENDS}
            base = entry.get(EXTENDS)
            if base is None or isinstance(base, str):
                return Layer(base, own)
            report(("policies", name, EXTENDS), "must be the name of a preset or of another policy")
            return Layer(None, own)
        case _:
            report(("policies", name), "must be the name of a preset or a mapping of settings")
            return None


def _chain(name: str, layers: Mapping[str, Layer], report: Report) -> tuple[list[Mapping[str, object]], bool]:
    """Return the settings from `name` down to the end of its chain, and True if the chain is complete."""
    chain: list[Mapping[str, object]] = []
    trail: list[str] = []
    current: str | None = name
    while current is not None and current not in trail:
        base, own = layers[current]
        chain.append(own)
        trail.append(current)
        if base in layers and base != current:  # a policy named like a preset extends the preset, not itself
            current = base
        elif base is None or base in presets():
            return [*chain, presets().get(base or "", {})], True
        else:
            if current == name:
                known = suggest(base, {*presets(), *layers} - {name}, "known names")
                report(("policies", name, EXTENDS), f"no preset or policy has this name; {known}")
            return chain, False
    if current == name:
        report(
            ("policies", name, EXTENDS), f"extends itself in a circle: {' -> '.join(map(shown_key, [*trail, name]))}"
        )
    return chain, False


def _over(base: Mapping[str, object], top: Mapping[str, object]) -> dict[str, object]:
    """Return `top` over `base`, group by group."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = _over(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
