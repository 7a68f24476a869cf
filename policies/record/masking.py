"""A record without secrets, whenever and under whatever policy it was made."""

import re
from collections.abc import Callable
from functools import lru_cache

from msgspec.structs import replace

from policies.record import working_set
from policies.record.record import Record, Segment
from policies.secrets.mask import mask_secrets, values_in
from policies.settings import Secrets

# Records that were made without: each request of their conversations asks for them several times.
_REMEMBERED = 64


def as_allowed(record: Record, secrets: Secrets) -> Record:
    """The record as a policy lets it be sent and shown."""
    return record if secrets == "keep" or record.is_masked else _mask_record(record)


@lru_cache(_REMEMBERED)
def _mask_record(record: Record) -> Record:
    uses = working_set.unpack_names(record.uses)
    without = _masker([record.text, record.summary, *(use.line for use in uses), *(e.text for e in record.entries)])
    return replace(
        record,
        text=without(record.text),
        summary=without(record.summary),
        segments=tuple(Segment(without(one.text), tuple(map(without, one.insights))) for one in record.segments),
        entries=tuple(replace(entry, text=without(entry.text)) for entry in record.entries),
        actions=tuple(
            replace(
                action,
                arguments=without(action.arguments),
                why=without(action.why),
                about=without(action.about),
            )
            for action in record.actions
        ),
        files=tuple(
            replace(
                file,
                path=without(file.path),
                other=without(file.other),
                line=without(file.line),
                says=without(file.says),
            )
            for file in record.files
        ),
        seen=tuple(map(without, record.seen)),
        attempts=tuple(
            replace(
                each,
                arguments=without(each.arguments),
                why=without(each.why),
                kind=without(each.kind),
                target=tuple(map(without, each.target)),
            )
            for each in record.attempts
        ),
        running=tuple(replace(each, what=without(each.what)) for each in record.running),
        plan=replace(
            record.plan,
            items=tuple(replace(item, text=without(item.text)) for item in record.plan.items),
            text=without(record.plan.text),
        ),
        steps=tuple(
            replace(
                step,
                title=without(step.title),
                url=without(step.url),
                typed=tuple(map(without, step.typed)),
                memory=without(step.memory),
                goal=without(step.goal),
            )
            for step in record.steps
        ),
        reports=tuple(replace(report, text=without(report.text)) for report in record.reports),
        rules=tuple(replace(file, text=without(file.text)) for file in record.rules),
        pins=tuple(replace(pin, source=without(pin.source), text=without(pin.text)) for pin in record.pins),
        briefs=tuple(replace(file, text=without(file.text)) for file in record.briefs),
        left_out=tuple(replace(each, text=without(each.text)) for each in record.left_out),
        uses=working_set.pack_names(
            [replace(use, name=without(use.name), line=without(use.line), source=without(use.source)) for use in uses]
        ),
        is_masked=True,
    )


def _masker(texts: list[str]) -> Callable[[str], str]:
    """Masks what is a secret by its own text, and what is one by another: a name in the working set stands alone."""
    known = {value: mask for text in texts for value, mask in values_in(text).items()}
    if not known:
        return mask_secrets
    alone = re.compile("|".join(map(re.escape, sorted(known, key=len, reverse=True))))
    return lambda text: alone.sub(lambda found: known[found[0]], mask_secrets(text))
