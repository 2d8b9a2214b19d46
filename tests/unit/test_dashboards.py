"""Dashboards and alert rules go by names that the servers' pages have (interface §4.1, F171)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from octavo.bookie.config import BookieConfig
from octavo.metrics import catalogue as m
from octavo.metrics import of_groups as g
from tests.promql import faults, names_in
from tools import gen_dashboards
from tools.dashboards import FILES

FOLDER = gen_dashboards.FOLDER.parent
DURATION = re.compile(r"[1-9]\d*[smh]")


def loaded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((gen_dashboards.FOLDER / name).read_text("utf-8"))
    return found


def rules() -> list[dict[str, Any]]:
    whole = yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))
    return [rule for group in whole["groups"] for rule in group["rules"]]


def targets() -> Iterator[tuple[str, str, str]]:
    """Every expression of the files: where, the expression, its legend."""
    for name in FILES:
        for panel in loaded(name)["panels"]:
            for target in panel.get("targets", ()):
                where = f"{name}: {panel['title']}"
                yield where, target["expr"], target["legendFormat"]


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_is_what_the_description_says(name: str) -> None:
    committed = (gen_dashboards.FOLDER / name).read_text(encoding="utf-8")
    assert committed == gen_dashboards.text_of(FILES[name]), "run `make dashboards`"


def test_no_file_is_left_over() -> None:
    assert {path.name for path in gen_dashboards.FOLDER.iterdir()} == set(FILES)


def test_expressions_of_dashboards_are_sound() -> None:
    wrong = {where: said for where, text, legend in targets() if (said := faults(text, legend))}
    assert wrong == {}


def test_lists_to_choose_from_are_sound() -> None:
    asked = re.compile(r"label_values\((.*), (\w+)\)")
    for name in FILES:
        dashboard = loaded(name)
        source, *choices = dashboard["templating"]["list"]
        assert source["type"] == "datasource"
        for choice in choices:
            match = asked.fullmatch(choice["query"]["query"])
            assert match is not None
            assert faults(f"max by ({match[2]}) ({match[1]})") == []
        chosen = {f"${choice['name']}" for choice in choices}
        used = set(re.findall(r"\$[a-z]+", " ".join(t["expr"] for p in dashboard["panels"]
                                                   for t in p.get("targets", ()))))  # fmt: skip
        assert used == chosen, name


def test_panels_have_places_and_ids_of_their_own() -> None:
    for name in FILES:
        panels = loaded(name)["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        cells = [
            (x, y)
            for at in (panel["gridPos"] for panel in panels)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ]
        assert len(set(cells)) == len(cells), f"{name}: panels lie over each other"
        assert max(x for x, _ in cells) < gen_dashboards.COLUMNS
        for panel in panels:
            assert panel["type"] in ("row", "text") or panel["targets"], panel["title"]
    assert len({loaded(name)["uid"] for name in FILES}) == len(FILES) == 5


def test_what_people_chart_is_drawn() -> None:
    drawn = {name for _, text, _ in targets() for name in names_in(text)}
    wanted = {
        m.MESSAGES, m.BYTES, m.PARTITION_END, m.PARTITION_BEGIN, m.PARTITION_LOAD,
        m.UNDERREPLICATED, m.ENSEMBLE_CHANGES, m.FENCED_ADDS, m.LEDGER_RECOVERIES,
        m.JOURNAL_QUEUE_ENTRIES, m.BOOKIE_STATE, m.DISK_FREE, m.CORRUPT_ENTRIES,
        m.METADATA_SESSION_STATE, m.METADATA_SESSION_LOSSES, m.CONNECTIONS, m.THROTTLED,
        g.SUBSCRIPTION_LAG, g.SUBSCRIPTION_LAG_SECONDS, g.SUBSCRIPTION_CONSUMERS, g.TOPIC_LAG,
        g.TOPIC_LAG_SECONDS, g.TOPIC_DRAIN, g.TOPIC_INFLOW, g.TOPIC_UNKNOWN,
        g.SUBSCRIPTION_LEFT_OUT, m.SCRUB_BYTES, m.SCRUB_ENDED, m.SCRUB_DAMAGED, m.SCRUB_WAITING,
        m.SCRUB_QUARANTINED,
    }  # fmt: skip
    assert {metric.name for metric in wanted} <= drawn
    timed = {
        m.REQUEST_SECONDS_OF, m.PUBLISH_ACK_SECONDS, m.RECOVERY_SECONDS, m.JOURNAL_ADD_SECONDS,
        m.JOURNAL_FSYNC_SECONDS, m.METADATA_OP_SECONDS, m.LOOP_LAG,
    }  # fmt: skip
    assert {f"{metric.name}_bucket" for metric in timed} <= drawn


def test_alert_rules_are_sound() -> None:
    found = rules()
    assert len({rule["alert"] for rule in found}) == len(found)
    for rule in found:
        assert faults(rule["expr"]) == [], rule["alert"]
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert DURATION.fullmatch(rule.get("for", "1s"))
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        if "$labels" in rule["annotations"]["summary"]:  # a sum over all has none
            assert not re.match(r"(max|sum)\(", rule["expr"]), rule["alert"]


def test_what_the_specification_wants_alerts_for() -> None:
    by_name = {rule["alert"]: rule for rule in rules()}
    lacking = by_name["OctavoLedgersUnderreplicated"]
    assert lacking["expr"] == "max(octavo_ledgers_underreplicated) > 0"
    assert lacking["for"] == "10m"
    warned = BookieConfig.model_fields["disk_warn_ratio"].default
    assert f"< {1 - warned:.2f}" in by_name["OctavoDiskNearlyFull"]["expr"]
    for name in ("OctavoCorruptEntries", "OctavoFencedAdds", "OctavoBrokerDown", "OctavoBookieDown",
                 "OctavoLoopLag", "OctavoHotPartition", "OctavoGroupStandsStill",
                 "OctavoGroupFarBehind", "OctavoDamageNotRepaired"):  # fmt: skip
        assert name in by_name
    behind = names_in(by_name["OctavoGroupFallsBehind"]["expr"])  # F163: faster than drained
    assert behind == {g.TOPIC_INFLOW.name, g.TOPIC_DRAIN.name, g.TOPIC_LAG.name}


def test_jobs_of_the_rules_are_those_of_the_example() -> None:
    example = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))
    jobs = {job["job_name"] for job in example["scrape_configs"]}
    used = {job for rule in rules() for job in re.findall(r'job="([^"]+)"', rule["expr"])}
    assert used == jobs
    assert example["rule_files"] == ["alerts.yml"]


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("octavo_nothing", "not in the catalogue"),
        ("octavo_loop_lag_seconds", "not in the catalogue"),
        ("octavo_connections_bucket", "not in the catalogue"),
        ("octavo_fenced_adds_total", "rate or increase"),
        ("sum(octavo_fenced_adds_total)", "rate or increase"),
        ("rate(sum(octavo_fenced_adds_total))", "rate or increase"),
        ("rate(octavo_fenced_adds_total)", "a range"),
        ("rate(octavo_connections[5m])", "they alone"),
        ("octavo_connections[5m]", "a range"),
        ('octavo_connections{topic="a"}', "no label topic"),
        ("sum by (topic) (octavo_connections)", "no series here has it"),
        ("sum by (instance (octavo_connections)", "no series here has it"),
        ("sum(octavo_connections", "not closed"),
        ("octavo_connections)", "too many"),
        ('{job="x"}', "without a name"),
    ],
)
def test_the_check_finds_what_is_wrong(expression: str, fault: str) -> None:
    assert any(fault in said for said in faults(expression)), faults(expression)


def test_the_check_finds_labels_that_a_sum_dropped() -> None:
    fine = 'sum by (instance) (rate(octavo_bookie_entries_total{direction="in"}[5m]))'
    assert faults(fine, "{{instance}}") == []
    assert faults(fine, "{{direction}}") == ["the legend shows direction, no label that is left"]
    with pytest.raises(ValueError, match="not understood"):
        faults("octavo_connections ? 1")
