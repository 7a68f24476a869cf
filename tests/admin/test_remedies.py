"""What to do about a request that failed: every case has its advice and a section that exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.admin.remedies import _RULES, remedy_of
from tests.support.session_events import requested

DOCS = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("fields", "section"),
    [
        ({"status": 400, "overflow": "passed_on"}, "ConcertinaOverflowPassedOn"),
        ({"status": 0, "end": "client_gone"}, "ConcertinaSummaryWaits"),
        ({"status": 503, "code": "compaction_failed"}, "ConcertinaSummarizerFailing"),
        ({"status": 502, "code": "upstream_unreachable", "cause": "dns"}, "ConcertinaUpstreamUnreachable"),
        ({"status": 503, "code": "server_overloaded"}, "ConcertinaLoopLag"),
        ({"status": 403, "code": "not_allowed"}, "401, 403, 429, 502, 503"),
        ({"status": 401}, "ConcertinaUpstreamUnreachable"),
        ({"status": 429}, "ConcertinaUpstreamUnreachable"),
        ({"status": 529}, "ConcertinaUpstreamUnreachable"),
        ({"status": 400, "compaction": "failed-open"}, "ConcertinaFailingOpen"),
        ({"status": 400}, "401, 403, 429, 502, 503"),
    ],
)
def test_a_failed_request_has_its_section(fields: dict[str, object], section: str) -> None:
    assert section in remedy_of(requested(**fields)).runbook


def test_every_section_exists() -> None:
    for rule in _RULES:
        file, _, section = rule.runbook.replace(": ", ", ").partition(", ")
        headings = [line.strip("# ") for line in (DOCS / file).read_text().splitlines() if line.startswith("#")]
        assert section.strip('"') in headings, rule
