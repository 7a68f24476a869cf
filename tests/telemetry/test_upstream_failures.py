"""Where requests failed: what is held of an upstream's error, of whom, and how much of it."""

from __future__ import annotations

from proxy.telemetry.upstream_failures import MOST_TEXT, UpstreamFailure, UpstreamFailures
from tests.support.session_events import requested

ADDRESS = "http://upstream/v1"
LEAKED = "sk-proj-" + "a1B2c3D4e5F6g7H8" * 3


def failures() -> UpstreamFailures:
    held = UpstreamFailures()
    held.shows_content = lambda tenant: tenant == "default"
    return held


def test_the_error_text_is_held_masked_and_cut() -> None:
    held = failures()
    held.hold(requested(id="a"), ADDRESS, f"The key {LEAKED} is wrong. " + "x" * MOST_TEXT)
    found = held.of("a")
    assert found is not None
    assert LEAKED not in found.text
    assert found.text.startswith("The key ")
    assert len(found.text) <= MOST_TEXT
    assert held.of("b") is None


def test_no_text_is_held_of_a_tenant_whose_content_may_not_be_read() -> None:
    held = failures()
    for tenant in ("acme", None):
        held.hold(requested(id="a", tenant=tenant), ADDRESS, "some words")
        assert held.of("a") == UpstreamFailure(ADDRESS)
    unset = UpstreamFailures()
    unset.hold(requested(id="a"), ADDRESS, "some words")
    assert unset.of("a") == UpstreamFailure(ADDRESS)


def test_the_newest_thousand_are_held_and_none_of_a_session_that_was_erased() -> None:
    held = failures()
    for number in range(1_100):
        held.hold(requested(id=f"{number}", label="x" if number % 2 else None), ADDRESS, "")
    assert [held.of(name) is None for name in ("0", "99", "100", "1099")] == [True, True, False, False]
    session = requested().session or ""
    held.forget("default", session, "x".__eq__)
    assert [held.of(name) is None for name in ("1098", "1099")] == [False, True]
