"""The catalogue of metrics and what becomes of numbers on their way to a page (interface §4.1)."""

from __future__ import annotations

import math
import re

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from octavo.metrics import catalogue
from octavo.metrics.readings import Readings
from octavo.runtime.errors import InvariantViolation
from octavo.runtime.histogram import SYNC_SECONDS, Histogram
from tests.metrics_client import Page, parsed

LABELS = {"quota",
    "code", "direction", "disk", "generation", "group", "implementation", "kind", "major", "method",
    "minor", "op", "outcome", "partition", "patchlevel", "policy", "server", "state", "status",
    "topic", "version",
}  # fmt: skip
"""Every label there is; one that could name a person, a key or an address is never among them."""
BY_SETTING = {"group", "partition", "topic"}
"""Labels with as many values as users make; only where a setting bounds the series."""


def page_of(readings: Readings) -> Page:
    class Once(Collector):
        def collect(self):  # type: ignore[no-untyped-def]
            return readings.families()

    registry = CollectorRegistry()
    registry.register(Once())
    return parsed(generate_latest(registry).decode())


def test_names_follow_the_rules() -> None:
    names = [metric.name for metric in catalogue.ALL]
    assert len(set(names)) == len(names)
    for metric in catalogue.ALL:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
        assert metric.name.startswith("octavo_") != metric.by_library
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.meaning, metric.name
        assert metric.servers, metric.name
        assert bool(metric.buckets) == (metric.kind == "histogram"), metric.name
        assert list(metric.buckets) == sorted(set(metric.buckets)), metric.name
        if metric.kind == "histogram" and metric is not catalogue.JOURNAL_GROUP_SIZE:
            assert metric.unit == "seconds", metric.name


def test_labels_name_no_person_and_have_few_values() -> None:
    used = {label for metric in catalogue.ALL for label in metric.labels}
    assert used == LABELS
    for metric in catalogue.ALL:
        assert bool(BY_SETTING & set(metric.labels)) == bool(metric.setting), metric.name


def test_names_of_the_specification_are_there() -> None:
    names = {metric.name for metric in catalogue.ALL}
    for name in (
        "octavo_broker_messages_total", "octavo_broker_bytes_total",
        "octavo_broker_request_seconds",
        "octavo_broker_publish_ack_seconds", "octavo_partition_end_offset",
        "octavo_partition_begin_offset", "octavo_ledgers_underreplicated",
        "octavo_ensemble_changes_total", "octavo_fenced_adds_total",
        "octavo_ledger_recoveries_total", "octavo_recovery_seconds",
        "octavo_bookie_journal_add_seconds", "octavo_bookie_journal_fsync_seconds",
        "octavo_bookie_journal_group_size", "octavo_bookie_journal_queue_entries",
        "octavo_bookie_state", "octavo_bookie_disk_free_bytes",
        "octavo_bookie_corrupt_entries_total", "octavo_bookie_index_rebuilds_total",
        "octavo_zk_op_seconds", "octavo_zk_session_state", "octavo_zk_session_losses_total",
        "octavo_connections", "octavo_loop_lag_seconds", "octavo_build_info",
        "octavo_subscription_lag_messages", "octavo_subscription_lag_seconds",
        "octavo_subscription_consumers",
    ):  # fmt: skip
        assert name in names


def test_each_server_has_its_own_and_the_common_ones() -> None:
    broker = {metric.name for metric in catalogue.of_server("broker")}
    bookie = {metric.name for metric in catalogue.of_server("bookie")}
    common = broker & bookie
    assert {"octavo_build_info", "octavo_connections", "process_open_fds"} <= common
    assert "octavo_broker_messages_total" in broker - bookie
    assert "octavo_bookie_state" in bookie - broker
    assert broker | bookie == {metric.name for metric in catalogue.ALL}


def test_a_histogram_counts_each_value_once_at_its_upper_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.1, 99.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 2]
    assert histogram.total == pytest.approx(106.1)


def test_readings_come_out_of_the_parser_as_they_went_in() -> None:
    metrics = (catalogue.MESSAGES, catalogue.PARTITIONS, catalogue.LOOP_LAG, catalogue.BOOKIE_STATE)
    readings = Readings(metrics)
    readings.add(catalogue.MESSAGES, 7, "in")
    readings.add(catalogue.MESSAGES, 2**53, "out")
    readings.add(catalogue.PARTITIONS, 3)
    readings.add_state(catalogue.BOOKIE_STATE, ("rw", "ro"), "ro")
    lag = Histogram(SYNC_SECONDS)
    lag.observe(0.0003)
    lag.observe(77)
    readings.add_histogram(catalogue.LOOP_LAG, lag)
    lag.observe(1)  # what comes later is of the next look
    page = page_of(readings)
    assert page.value("octavo_broker_messages_total", direction="in") == 7
    assert page.value("octavo_broker_messages_total", direction="out") == 2**53
    assert page.value("octavo_broker_partitions") == 3
    assert page.value("octavo_bookie_state", state="ro") == 1
    assert page.value("octavo_bookie_state", state="rw") == 0
    assert page.value("octavo_loop_lag_seconds_bucket", le="0.0002") == 0
    assert page.value("octavo_loop_lag_seconds_bucket", le="0.0005") == 1
    assert page.value("octavo_loop_lag_seconds_bucket", le="5.0") == 1
    assert page.value("octavo_loop_lag_seconds_bucket", le="+Inf") == 2
    assert page.value("octavo_loop_lag_seconds_count") == 2
    assert math.isclose(page.value("octavo_loop_lag_seconds_sum"), 77.0003)


def test_what_is_not_known_has_no_series_but_its_name_is_told() -> None:
    readings = Readings((catalogue.CONNECTIONS, catalogue.PARTITION_END))
    readings.add(catalogue.CONNECTIONS, None)
    page = page_of(readings)
    assert page.families.keys() == {"octavo_connections", "octavo_partition_end_offset"}
    assert page.values("octavo_connections") == []


def test_other_buckets_than_those_of_the_catalogue_are_refused() -> None:
    readings = Readings((catalogue.LOOP_LAG,))
    with pytest.raises(InvariantViolation, match="octavo_loop_lag_seconds"):
        readings.add_histogram(catalogue.LOOP_LAG, Histogram((1.0,)))


def test_values_of_labels_cannot_break_the_page() -> None:
    readings = Readings((catalogue.PARTITION_END,))
    readings.add(catalogue.PARTITION_END, 5, 'a"}\nb\\', "0")
    page = page_of(readings)
    assert page.value("octavo_partition_end_offset", topic='a"}\nb\\') == 5
