"""/metrics, as Prometheus reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from tests.support.stages import DUE, SMALL, stage
from tests.support.upstreams import ask

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

BEARER = (b"authorization", b"Bearer " + b"t" * 16)
OPENMETRICS = (b"accept", b"application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.2")


async def test_it_is_in_the_format_that_is_asked_for_and_says_the_same_in_both(tmp_path: Path) -> None:
    async with stage(tmp_path, server={"admin_token": "t" * 16}) as play:
        await play.send(SMALL)
        await play.send(DUE)
        await play.settled()
        text = await ask(play.address, "GET", "/metrics", [BEARER])
        other = await ask(play.address, "GET", "/metrics", [BEARER, OPENMETRICS])
    assert (text.header(b"content-type") or b"").startswith(b"text/plain; version=0.0.4")
    assert (other.header(b"content-type") or b"").startswith(b"application/openmetrics-text; version=1.0.0")
    found = {family.name: family for family in plain(text.body.decode())}
    again = {family.name: family for family in openmetrics(other.body.decode())}
    ours = {name for name in found if name.startswith("concertina_")}
    assert ours == {name for name in again if name.startswith("concertina_")}
    assert not any(sample.name.endswith("_created") for family in found.values() for sample in family.samples)
    labels = {name for family in found.values() for sample in family.samples for name in sample.labels}
    assert not labels & {"session", "path", "key", "label", "user"}


async def test_what_other_parts_count_is_told_too(tmp_path: Path) -> None:
    limits = {"default": {"summary_tokens_per_day": 100_000}}
    async with stage(tmp_path, server={"admin_token": "t" * 16}, tenants=limits) as play:
        await play.send(DUE)
        await play.settled()
        text = (await ask(play.address, "GET", "/metrics", [BEARER])).body.decode()
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}
    assert values["concertina_store_up"] == 1
    assert values['concertina_store_operation_duration_seconds_count{operation="get_many"}'] > 0
    assert sum(value for name, value in values.items() if name.startswith("concertina_checkpoint_lookups")) > 0
    assert 0 < values['concertina_summary_budget_used_ratio{tenant="default"}'] < 1
    assert values["concertina_log_lines_lost_total"] == 0
    assert values['concertina_requests_in_flight{tenant="default"}'] == 0
    assert values["concertina_config_reload_successful"] == 1
    assert values["process_open_fds"] > 0
