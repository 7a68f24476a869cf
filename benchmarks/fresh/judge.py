"""What the last record of a session says, against what is true of the session."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from benchmarks.fresh.run import Sent
from benchmarks.fresh.sessions import Event
from benchmarks.fresh.wire import Play, typed

# How the headings of a record begin, in the languages it is worded in.
_PARTS = {
    "user": ("What the user said", "用户原话", "ユーザーの発言", "사용자가 한 말"),
    "plan": ("Plan", "计划", "計画", "계획"),
    "failed": ("Tried and failed", "尝试过且失败", "試みて失敗", "시도했으나"),
    "reports": ("Said in the user's name", "钩子", "以用户名义", "フック", "훅"),
    "running": ("Running", "正在运行", "仍在运行", "実行中", "실행 중"),
    "calls": ("Tool calls", "工具调用", "ツールの呼び出し", "도구 호출"),
    "files": ("Files", "文件", "ファイル", "파일"),
    "names": ("Names and lines", "工作中", "作業で使われた", "작업에 쓰인"),
}
_LINE = re.compile(r"- \[(\d+)(?:-\d+)?\] (.*)")
_OUTCOME = re.compile(r" -> (ok|failed|成功|失败|失敗|성공|실패)(?=$|[\s:：;；,，(（])")
_QUOTED = re.compile(r" -> (?:\w+: )?[\"“「]")
_FILE = re.compile(r"- (\S+) [(（]([^)）]*)[)）]")
_HEDGED = re.compile(r"not known|asked for|结果|結果|未知|不明|未确认|送信のみ|확인 안|not confirmed")
_GONE = re.compile(r"deleted|删除|削除|삭제")
_NAME = re.compile(r"[a-z]+_[a-z]+_[a-z]+|src/[a-z_/]+\.py")
_SENTENCE = re.compile(r"(?<=[.?!。？！])\s*")
_RUN = 12
# Characters of a token, about.
_TOKEN = 4


@dataclass
class Verdict:
    """The figures of one session, and its false lines as (reason, line)."""

    figures: dict[str, float] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    false_lines: list[tuple[str, str]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    record: str = ""


def judged(events: list[Event], play: Play, sent: Sent, window: int) -> Verdict:
    """Return the figures of a session that was played at this window."""
    prompt = "\n".join(_strings(json.loads(sent.bodies[-1])))
    begin, end = prompt.find("<conversation_record"), prompt.find("</conversation_record>")
    record = prompt[begin:end] if begin >= 0 else ""
    verdict = Verdict(record=record)
    parts = _parts(record)
    verdict.parts = {name: len("\n".join(lines)) / _TOKEN for name, lines in parts.items()}
    _people(events, prompt, verdict)
    _user_lines(events, parts.get("user", []), prompt, verdict)
    tail = prompt.replace(record, "") if record else prompt
    _calls(events, play, parts, tail, verdict)
    _files(events, parts.get("files", []), tail, verdict)
    _plan(events, parts.get("plan", []), verdict)
    lines = sum(line.startswith("- ") for name in parts for line in parts[name])
    figures = verdict.figures
    figures["false_lines_of_100"] = 100 * len(verdict.false_lines) / lines if lines else 0.0
    figures["lines"] = lines
    figures["recall"] = _recall(events, sent, window)
    figures["record_tokens"] = len(record) / _TOKEN
    figures["record_share"] = figures["record_tokens"] / window
    figures["sent_tokens"] = sum(map(len, sent.bodies)) / len(sent.bodies) / _TOKEN
    reuse = [_common(one, other) / len(one) for one, other in pairwise(sent.bodies)]
    figures["prefix_reuse"] = sum(reuse) / len(reuse) if reuse else 1.0
    figures["extra_calls"] = len(sent.bodies) - sent.requests
    figures["errors"] = sent.errors
    return verdict


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def _parts(record: str) -> dict[str, list[str]]:
    """Return the lines under each heading, by our name for it; `other` for an unknown one."""
    parts: dict[str, list[str]] = {}
    name = "lately"
    for line in record.splitlines():
        if line.startswith("## "):
            title = line[3:]
            name = next((each for each, begins in _PARTS.items() if title.startswith(begins)), "other")
        else:
            parts.setdefault(name, []).append(line)
    return parts


def _common(one: bytes, other: bytes) -> int:
    """Return how many bytes both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _flat(text: str) -> str:
    return " ".join(text.replace("&lt;", "<").replace("&amp;", "&").split())


def _people(events: list[Event], prompt: str, verdict: Verdict) -> None:
    flat = _flat(prompt)
    people = [event for event in events if event.who == "person"]
    said = [_flat(event.text) for event in people]
    holding = [_flat(event.text) for event in people if not event.replaced_by]
    present = [_stands(text, said, flat) for text in holding]
    sentences = [part for text in holding for part in _SENTENCE.split(text) if part]
    rules = [text for event, text in zip(people, said, strict=True) if event.kind == "rule"]
    figures = verdict.figures
    figures["people_present"] = sum(present) / len(present)
    figures["sentences"] = sum(part in flat for part in sentences) / len(sentences)
    stand = [all(part in flat for part in _SENTENCE.split(text) if part) for text in rules]
    figures["rules"] = sum(stand) / len(stand)
    values = [event for event in people if event.replaced_by]
    figures["stale_values"] = sum(_flat(each.text) in flat and _flat(each.replaced_by) not in flat for each in values)
    figures["values_lost"] = sum(_flat(each.replaced_by) not in flat for each in values)
    verdict.missing = [text for text, stands in zip(holding, present, strict=True) if not stands]


def _stands(text: str, others: list[str], prompt: str) -> bool:
    """Return True if a run of the text stands in the prompt that is no name, and in no other message if possible."""
    size = min(_RUN, max(len(text) // 2, 1))
    runs = {text[at : at + size] for at in range(len(text) - size + 1)}
    runs = {run for run in runs if not re.fullmatch(r"[\w./-]+", run, re.ASCII)} or runs
    distinct = {run for run in runs if not any(run in other for other in others if other != text)}
    return any(run in prompt for run in distinct or runs)


def _user_lines(events: list[Event], lines: list[str], prompt: str, verdict: Verdict) -> None:
    typed_texts = [_flat(event.text) for event in events if event.who == "person"]
    pasted = " ".join(_flat(event.pasted) for event in events)
    flat = _flat(prompt)
    pasted_lines = 0
    for line in lines:
        found = _LINE.match(line)
        if not found:
            continue
        pieces = [
            piece.strip(" \"'")
            for piece in re.split(r"\s*(?:…|\.\.\.|\[\.\.\.\])\s*", _flat(found[2]).removeprefix("> "))
        ]
        pieces = [piece for piece in pieces if len(piece) > 3]
        if all(any(piece in text for text in typed_texts) for piece in pieces):
            _check_stale(events, pieces, flat, line, verdict)
        elif all(piece in pasted or any(piece in text for text in typed_texts) for piece in pieces):
            pasted_lines += 1
        else:
            verdict.false_lines.append(("user: nobody typed it", line))
    verdict.figures["pasted_as_said"] = pasted_lines


def _check_stale(events: list[Event], pieces: list[str], flat: str, line: str, verdict: Verdict) -> None:
    for event in events:
        if event.replaced_by and _flat(event.text) in pieces and _flat(event.replaced_by) not in flat:
            verdict.false_lines.append(("user: superseded, without the later one", line))


def _calls(events: list[Event], play: Play, parts: dict[str, list[str]], tail: str, verdict: Verdict) -> None:
    shift = int(play.messages[0].get("role") == "system")
    calls = {play.at[n] - shift: event for n, event in enumerate(events) if event.who == "call"}
    counts = dict.fromkeys(("told", "told_failed", "false_ok", "false_failed", "quoted", "true_failed"), 0)
    counts["true_failed"] = sum(event.outcome == "failed" and not _is_kept(event, tail) for event in calls.values())
    told: set[int] = set()
    for name in ("calls", "failed"):
        for line in parts.get(name, []):
            found = _LINE.match(line)
            at = _call_at(int(found[1]), calls, found[2]) if found else None
            if found is None or at is None:
                continue
            outcome = _OUTCOME.search(line)
            counts["told"] += name == "calls"
            counts["quoted"] += bool(_QUOTED.search(line)) and not outcome
            is_failed = name == "failed" or bool(outcome and outcome[1] not in ("ok", "成功", "성공"))
            truth = calls[at].outcome
            if is_failed:
                if truth == "failed" and not _is_kept(calls[at], tail):
                    told.add(at)
                counts["false_failed"] += truth in ("ok", "unknown")
                if truth in ("ok", "unknown"):
                    verdict.false_lines.append((f"{name}: failed, but it is {truth}", line))
            elif outcome and truth in ("failed", "unknown"):
                counts["false_ok"] += 1
                verdict.false_lines.append((f"{name}: ok, but it is {truth}", line))
    counts["told_failed"] = len(told)
    verdict.figures.update(
        {key: float(value) for key, value in counts.items() if key not in ("true_failed", "told_failed", "quoted")}
    )
    verdict.figures["failed_told_share"] = len(told) / counts["true_failed"] if counts["true_failed"] else 1.0
    verdict.figures["quoted_share"] = counts["quoted"] / counts["told"] if counts["told"] else 0.0


def _call_at(index: int, calls: dict[int, Event], text: str) -> int | None:
    """Return the index of the call that a line tells of: at or just beside the number, with its words."""
    for at in (index, index - 1, index + 1):
        if at in calls and (calls[at].arguments.get("path", "") in text if calls[at].tool != "run" else True):
            words = str(calls[at].arguments.get("command", ""))[:16]
            if calls[at].tool != "run" or words in text:
                return at
    return None


def _is_kept(event: Event, tail: str) -> bool:
    """Return True if a call stands word for word behind the record, so that the record need not tell it."""
    arguments = event.arguments
    said = [arguments[key] for key in ("path", "command", "new") if key in arguments]
    return bool(said) and all(text in tail for text in said)


def _files(events: list[Event], lines: list[str], tail: str, verdict: Verdict) -> None:
    truth: dict[str, str] = {}
    for event in events:
        truth.update(dict(event.files))
    told: set[str] = set()
    hedged_false = 0
    for line in lines:
        found = _FILE.match(line)
        if not found:
            continue
        path, state = found[1].removeprefix("/srv/app/"), found[2]
        moved = re.search(r"(?:docs|notes)/\w+\.md", state)
        told |= {path, moved[0]} if moved else {path}
        if path in truth or (moved and moved[0] in truth):
            if _GONE.search(state) and truth.get(path) not in ("deleted", None):
                verdict.false_lines.append(("files: not deleted", line))
        elif path.startswith("tmp/") and f"docs/{path[4:-4]}.md" in truth:
            continue
        elif _HEDGED.search(state):
            hedged_false += 1
        else:
            verdict.false_lines.append(("files: never changed", line))
    kept = {path for event in events if _is_kept(event, tail) for path, _ in event.files}
    covered = set(truth) - kept
    verdict.figures["files_told"] = len(told & covered) / len(covered) if covered else 1.0
    verdict.figures["files_false_hedged"] = hedged_false


def _plan(events: list[Event], lines: list[str], verdict: Verdict) -> None:
    plans = [event.arguments["todos"] for event in events if event.tool == "plan"]
    told: dict[str, tuple[str, str]] = {}
    for line in lines:
        found = re.match(r"- \[(.)\] (\S+)(.*)", line)
        if found and plans:
            state = "completed" if found[1] == "x" else "in_progress" if found[3].strip() else "pending"
            told[line] = found[2], state
    # A plan that a later call replaced may still be right: that call is younger than the record.
    versions = [{(item["content"], item["status"]) for item in plan} for plan in plans]
    best = max(versions, key=lambda version: len(version & set(told.values())), default=set())
    wrong = [line for line, item in told.items() if item not in best]
    verdict.false_lines.extend(("plan: wrong state", line) for line in wrong)


def _recall(events: list[Event], sent: Sent, window: int) -> float:
    """Return the share of the assistant's names, last seen over half a window back, that stand in what was sent."""
    if len(sent.bodies) != sent.requests:
        return float("nan")
    seen: dict[str, int] = {}
    position = needed = met = request = 0
    for event in events:
        text = typed(event) + json.dumps(event.arguments, ensure_ascii=False)
        if event.who in ("assistant", "call"):
            body = sent.bodies[request].decode()
            request += 1
            for name in set(_NAME.findall(text)):
                if name in seen and position - seen[name] > window * _TOKEN / 2:
                    needed += 1
                    met += name in body
        position += len(text) + len(event.result)
        seen.update(dict.fromkeys(_NAME.findall(text + event.result), position))
    return met / needed if needed else float("nan")
