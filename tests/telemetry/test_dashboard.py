"""The Grafana dashboard and the alerts: whole in themselves, and of metrics that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib import resources
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from tests.support.prometheus import METRIC, queries

DEPLOY = resources.files("proxy") / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana/concertina.json").read_text("utf-8"))
RUNBOOKS = (Path(__file__).parents[2] / "docs/runbooks.md").read_text("utf-8")
ALERTS = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text("utf-8"))
DOCUMENT = Path(__file__).parents[2] / "docs/reference/metrics.md"
UNITS = {"none", "reqps", "ops", "percentunit", "s", "bytes", "currencyUSD"}

panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: run `apt-get install prometheus`"
)


def documented() -> set[str]:
    return set(re.findall(r"^\| `(concertina_\w+)` \|", DOCUMENT.read_text("utf-8"), re.MULTILINE))


def test_every_panel_has_an_id_a_unit_and_a_place_of_its_own() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels:
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["datasource"]["uid"] == "${source}"
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
    for one, two in combinations((panel["gridPos"] for panel in DASHBOARD["panels"]), 2):
        apart = one["x"] + one["w"] <= two["x"] or two["x"] + two["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= two["y"] or two["y"] + two["h"] <= one["y"]


def test_the_rows_are_what_an_operator_asks_for_in_order() -> None:
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == [
        "Health", "Kept alive and windows", "Tokens and cost", "Latency", "Summarizers", "Store", "Process",
    ]  # fmt: skip


def test_nothing_is_asked_for_that_is_not_told() -> None:
    rules = [rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]]
    asked = {name for expr in [*queries(DASHBOARD), *rules] for name in METRIC.findall(expr)}
    assert {re.sub(r"_bucket$", "", name) for name in asked} <= documented()


@promtool
def test_promtool_finds_the_alerts_right_and_they_fire_when_they_must() -> None:
    folder = DEPLOY / "prometheus"
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=str(folder), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested() -> None:
    tests = (DEPLOY / "prometheus/alerts_test.yml").read_text("utf-8")
    names = [rule["alert"] for group in ALERTS["groups"] for rule in group["rules"]]
    assert [name for name in names if name not in tests] == []
    assert all(rule["annotations"]["summary"] for group in ALERTS["groups"] for rule in group["rules"])


def test_every_alert_has_its_runbook_and_leads_there() -> None:
    rules = [rule for group in ALERTS["groups"] for rule in group["rules"]]
    sections = dict(re.findall(r"^## (Concertina\w+)\n\n(.+?)(?=\n## |\Z)", RUNBOOKS, re.MULTILINE | re.DOTALL))
    assert [*sections] == [rule["alert"] for rule in rules]
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{rule['alert'].lower()}"
        parts = re.findall(r"^\*\*(\w+)\*\*: ", sections[rule["alert"]], re.MULTILINE)
        assert parts == ["Means", "Look", "Do"], rule["alert"]


def test_the_objectives_name_alerts_and_metrics_that_there_are() -> None:
    table = RUNBOOKS.partition("## Objectives")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| ([^|]+) \|$", table, re.MULTILINE)[1:]
    names = {rule["alert"] for group in ALERTS["groups"] for rule in group["rules"]}
    assert len(rows) == 5
    for measure, alerts in rows:
        assert {f"Concertina{alert}" for alert in alerts.split(", ")} <= names
        metrics = re.findall(r"`(\w+_(?:total|seconds))`", measure)
        assert metrics
        assert {f"concertina_{metric}" for metric in metrics} <= documented()
