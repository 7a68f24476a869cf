"""A refusal that states no number is a lesson: what was refused is not sent again, by any session of that caller."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from policies import model_profile
from proxy.dialects.table import CHAT as CHAT_DIALECT
from tests.support.dialects import WRITERS, Writer
from tests.support.refusing import KNOWN, REFUSALS, SETTINGS, Played, Setting, play, refusing, session
from tests.support.upstreams import CHAT, JSON, ask, proxied

pytestmark = pytest.mark.anyio
MOST = 2


@pytest.fixture(scope="module")
def measures() -> dict[tuple[str, int], Played]:
    """What an agent whose window is known comes to, by dialect and size of results: each is played once."""
    return {}


@pytest.mark.slow
# Every setting in one dialect, and one in the others.
@pytest.mark.parametrize(
    ("writer", "setting"),
    [*((WRITERS[0], setting) for setting in SETTINGS), *((writer, SETTINGS[0]) for writer in WRITERS[1:])],
    ids=lambda value: value.name if isinstance(value, Setting) else value.dialect.name,
)
async def test_an_agent_is_refused_twice_at_most_and_has_as_many_records_as_with_a_known_window(
    writer: Writer, setting: Setting, measures: dict[tuple[str, int], Played]
) -> None:
    refusal = REFUSALS[writer.dialect.name][0]
    kind = writer.dialect.name, setting.result_tokens
    if kind not in measures:
        known = next(each for each in KNOWN if each.result_tokens == setting.result_tokens)
        measures[kind] = await play(writer, known, refusal)
    played, measure = await play(writer, setting, refusal), measures[kind]
    assert (played.requests, played.passed_on) == (150, 0)
    assert played.refused <= MOST
    assert played.tokens_in_vain <= 0.03 * played.tokens
    assert played.records <= 1.5 * measure.records + 4


@pytest.mark.parametrize("refusal", REFUSALS[CHAT_DIALECT.name], ids=range(len(REFUSALS[CHAT_DIALECT.name])))
async def test_in_whatever_words_without_a_number_it_is_refused(refusal: bytes) -> None:
    writer = next(each for each in WRITERS if each.dialect is CHAT_DIALECT)
    played = await play(writer, SETTINGS[1], refusal, requests=25)
    assert (played.refused, played.passed_on) == (1, 0)


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)
async def test_a_session_that_has_overflowed_goes_on_from_its_record_however_far_below_its_window_it_seems(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST_CEILING_TTL", "LEARNED_TTL"):  # nothing that was refused is known to the next request
        monkeypatch.setattr(model_profile, name, 0.0)
    monkeypatch.setattr("proxy.models.windows.Windows.may_try_larger", lambda *_: False)
    played = await play(writer, SETTINGS[0], REFUSALS[writer.dialect.name][0])
    assert 1 <= played.refused <= 4
    assert played.records == played.refused


async def test_a_refusal_that_no_smaller_prompt_helps_against_teaches_nothing() -> None:
    played = Played()
    writer, setting = WRITERS[0], SETTINGS[1]
    small, large = list(session(writer, setting, 2))[-1], list(session(writer, setting, 6))[-1]
    whim = refusing(writer, REFUSALS["chat"][0], played, limit=0)
    with tempfile.TemporaryDirectory() as folder:
        async with proxied(Path(folder), whim, **setting.config) as (address, behind):
            refused = await ask(address, "POST", CHAT, [JSON], small)
            behind.play(refusing(writer, REFUSALS["chat"][0], played, limit=100_000))
            after = await ask(address, "POST", CHAT, [JSON], large)
    assert (refused.status, after.status) == (400, 200)
    assert after.header(b"x-compaction-reason") == b"below_floor"
