"""The text that stands for the covered messages: the summary, and what code carries beside it (section 7)."""

from __future__ import annotations

from collections.abc import Sequence

from policies import ledger
from policies.actions import FileChange, KeyAction
from policies.budget import Budget
from policies.ledger import Entry
from policies.settings import LedgerSettings
from policies.texts import Texts
from policies.transcript import CountTokens, escape


def render(
    texts: Texts,
    summary: str,
    segments: Sequence[str],
    entries: Sequence[Entry],
    actions: Sequence[KeyAction],
    files: Sequence[FileChange],
    *,
    budget: Budget,
    settings: LedgerSettings,
    count: CountTokens,
    anchor: int | None,
) -> str:
    """The injected text, within budget.record tokens: the blocks a model cannot be trusted with are filled first."""
    timeline = _newest_within([f"- {escape(segment)}" for segment in segments], budget.record // 6, count)
    fixed = [texts.opening, "", escape(summary), *(["", f"## {texts.timeline}", *timeline] if timeline else [])]
    left = budget.record - count("\n".join([*fixed, texts.closing])) - 40
    shown = [entry for entry in entries if entry.position != anchor]
    fitted = ledger.fit(shown, min(_ledger_budget(settings, budget), left * 4 // 5), count)
    said = [ledger.line(entry) for entry in fitted]
    left -= count("\n".join(said))
    changed = _newest_within([f"- {escape(f.path)} ({f.action})" for f in files], left // 2, count)
    left -= count("\n".join(changed))
    done = _newest_within([_action_line(a) for a in actions], left, count)
    blocks = ((texts.said, said), (texts.actions, done), (texts.files, changed))
    return "\n".join(
        [*fixed, *(part for title, lines in blocks if lines for part in ("", f"## {title}", *lines)), texts.closing]
    )


def _ledger_budget(settings: LedgerSettings, budget: Budget) -> int:
    if settings.budget_ratio is None:
        return settings.max_tokens
    return min(int(settings.budget_ratio * budget.usable), settings.max_tokens)


def _action_line(action: KeyAction) -> str:
    return escape(f"- {action.tool}({action.arguments}) -> {'ok' if action.ok else 'err'}")


def _newest_within(lines: Sequence[str], budget: int, count: CountTokens) -> list[str]:
    """The newest lines that fit, in their order."""
    kept: list[str] = []
    for text in reversed(lines):
        budget -= count(text) + 1
        if budget < 0:
            break
        kept.append(text)
    return kept[::-1]
