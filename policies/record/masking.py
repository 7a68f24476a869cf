"""Masking of secrets in records that were made without it."""

import re
from collections.abc import Callable
from functools import lru_cache

from msgspec.structs import replace

from policies.record import working_set
from policies.record.record import Record, Segment
from policies.secrets.mask import mask_secrets, values_in
from policies.settings import Secrets

# Records to cache. Each request of their conversations reads them several times.
_REMEMBERED = 64


def as_allowed(record: Record, secrets: Secrets) -> Record:
    """Return the record as the policy allows it to be sent and shown."""
    return record if secrets == "keep" or record.is_masked else _mask_record(record)


@lru_cache(_REMEMBERED)
def _mask_record(record: Record) -> Record:
    uses = working_set.unpack_names(record.uses)
    mask = _masker([record.text, record.summary, *(use.line for use in uses), *(e.text for e in record.entries)])
    return replace(
        record,
        text=mask(record.text),
        summary=mask(record.summary),
        segments=tuple(Segment(mask(segment.text), tuple(map(mask, segment.insights))) for segment in record.segments),
        entries=tuple(replace(entry, text=mask(entry.text)) for entry in record.entries),
        actions=tuple(
            replace(
                action,
                arguments=mask(action.arguments),
                why=mask(action.why),
                about=mask(action.about),
            )
            for action in record.actions
        ),
        files=tuple(
            replace(
                file,
                path=mask(file.path),
                other=mask(file.other),
                line=mask(file.line),
                says=mask(file.says),
            )
            for file in record.files
        ),
        seen=tuple(map(mask, record.seen)),
        attempts=tuple(
            replace(
                entry,
                arguments=mask(entry.arguments),
                why=mask(entry.why),
                kind=mask(entry.kind),
                target=tuple(map(mask, entry.target)),
            )
            for entry in record.attempts
        ),
        running=tuple(replace(entry, what=mask(entry.what)) for entry in record.running),
        plan=replace(
            record.plan,
            items=tuple(replace(item, text=mask(item.text)) for item in record.plan.items),
            text=mask(record.plan.text),
        ),
        steps=tuple(
            replace(
                step,
                title=mask(step.title),
                url=mask(step.url),
                typed=tuple(map(mask, step.typed)),
                memory=mask(step.memory),
                goal=mask(step.goal),
            )
            for step in record.steps
        ),
        reports=tuple(replace(report, text=mask(report.text)) for report in record.reports),
        rules=tuple(replace(file, text=mask(file.text)) for file in record.rules),
        pins=tuple(replace(pin, source=mask(pin.source), text=mask(pin.text)) for pin in record.pins),
        briefs=tuple(replace(file, text=mask(file.text)) for file in record.briefs),
        left_out=tuple(replace(entry, text=mask(entry.text)) for entry in record.left_out),
        uses=working_set.pack_names(
            [replace(use, name=mask(use.name), line=mask(use.line), source=mask(use.source)) for use in uses]
        ),
        is_masked=True,
    )


def _masker(texts: list[str]) -> Callable[[str], str]:
    """Return a function that masks secrets in a text.

    It masks each secret of `texts` wherever it occurs: a name of the working set has no context of its own.
    """
    masks_by_value = {value: mask for text in texts for value, mask in values_in(text).items()}
    if not masks_by_value:
        return mask_secrets
    values = re.compile("|".join(map(re.escape, sorted(masks_by_value, key=len, reverse=True))))
    return lambda text: values.sub(lambda match: masks_by_value[match[0]], mask_secrets(text))
