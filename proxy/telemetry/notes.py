"""The log lines and metrics of notes."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from proxy.telemetry.events import Note, NoteName


class NoteKind(NamedTuple):
    """The log line and metric of a note's name.

    level: of its log line; None for no line. fields: of the line, in their order. once: the field with a conversation
    for which only the first note is logged. counter, labels: of the metric; `model` is a bounded name there.
    label_values: labels that the note's name decides.
    """

    level: Literal["info", "warning"] | None
    fields: tuple[str, ...]
    once: str | None = None
    counter: str | None = None
    labels: tuple[str, ...] = ()
    label_values: tuple[str, ...] = ()


_MODEL = ("tenant", "upstream", "model")
NOTES: Mapping[NoteName, NoteKind] = {
    "admin": NoteKind("info", ("who", "what", "tenant", "session")),
    "compaction_item": NoteKind("info", (*_MODEL, "what"), counter="items", labels=(*_MODEL, "what")),
    "config_refused": NoteKind(None, (), counter="config_reloads", label_values=("failed",)),
    "config_reloaded": NoteKind(None, (), counter="config_reloads", label_values=("success",)),
    "copy_refused": NoteKind("warning", (*_MODEL, "status", "words"), counter="copies_refused", labels=_MODEL),
    "irreducible": NoteKind("warning", ("session", "tenant"), once="session"),
    "max_iterations": NoteKind("warning", ("tenant", "session", "retries")),
    "media_refused": NoteKind(
        "info", (*_MODEL, "what", "limit"), counter="media_refusals", labels=("upstream", "model", "what")
    ),
    "shape": NoteKind("info", ("upstream", "tenant", "shape")),
    "store_down": NoteKind("warning", ("reason",)),
    "store_up": NoteKind("info", ("reason",)),
    "summarizer_paused": NoteKind("warning", (*_MODEL, "kind", "seconds")),
    "thinking_removed": NoteKind("warning", _MODEL, counter="thinking_removed", labels=_MODEL),
    "unstable_history": NoteKind("warning", ("root", "session", "tenant"), once="root"),
}


def build_line(note: Note) -> dict[str, object]:
    """Return the fields of a note's log line in their order, without missing ones."""
    values: dict[str, object] = {"tenant": note.tenant, "session": note.session, **note.fields}
    return {field: values[field] for field in NOTES[note.name].fields if field in values}
