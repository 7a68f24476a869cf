"""A record without secrets, whenever and under whatever policy it was made."""

from msgspec.structs import replace

from policies.record import working_set
from policies.record.record import Record, Segment
from policies.secrets import masked
from policies.settings import Secrets


def as_allowed(record: Record, secrets: Secrets) -> Record:
    """The record as a policy lets it be sent and shown."""
    return record if secrets == "keep" or record.is_masked else _masked(record)


def _masked(record: Record) -> Record:
    return replace(
        record,
        text=masked(record.text),
        summary=masked(record.summary),
        segments=tuple(Segment(masked(one.text), tuple(map(masked, one.insights))) for one in record.segments),
        entries=tuple(replace(entry, text=masked(entry.text)) for entry in record.entries),
        actions=tuple(replace(action, arguments=masked(action.arguments)) for action in record.actions),
        files=tuple(replace(file, path=masked(file.path)) for file in record.files),
        uses=working_set.packed(
            [
                replace(use, name=masked(use.name), line=masked(use.line), source=masked(use.source))
                for use in working_set.unpacked(record.uses)
            ]
        ),
        is_masked=True,
    )
