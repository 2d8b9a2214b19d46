"""Tables, Markdown and JSON of the benchmark; and what a group of processes used."""

from __future__ import annotations

import io
import json
import os
import pathlib

import pytest
from rich.console import Console

from bench import report, usage
from bench.stats import Spread


def sample() -> report.Report:
    made = report.Report("Octavo and its peers", {"date": "2026-01-02", "cores": "2"})
    made.systems["octavo"] = report.SystemResult(
        "fsync before ack",
        {"octavo": "0.1.0"},
        [
            {"w1_64k_mbps": 200.4, "w3_p99_ms": 3.21},
            {"w1_64k_mbps": 180.0, "w3_p99_ms": 3.05},
            {"w1_64k_mbps": 210.0},
        ],
        {},
    )
    made.systems["kafka"] = report.SystemResult(
        "no fsync", {"kafka": "4"}, [{"w1_64k_mbps": 99.0, "w2_rps": 1234567.0}], {"w3": "no reply"}
    )
    made.unavailable["pulsar"] = "cannot be had"
    made.limits.append({"disk3_1m_mbps": 300.0})
    return made


def test_a_cell_shows_the_median_and_the_range_only_when_there_is_one() -> None:
    assert report.cell(Spread(5.0, 4.0, 6.0, 3), "{:.1f}") == "5.0 (4.0–6.0)"
    assert report.cell(Spread(5.0, 5.0, 5.0, 1), "{:.1f}") == "5.0"
    assert report.cell(Spread(5.01, 5.0, 5.02, 3), "{:.0f}") == "5"
    assert report.cell(None, "{:.1f}") == report.NOTHING


def test_a_measure_missing_in_a_failed_round_does_not_spoil_the_others() -> None:
    found = report.gather([{"a": 1.0, "b": 4.0}, {"a": 3.0}])
    assert found == {"a": Spread(2.0, 1.0, 3.0, 2), "b": Spread(4.0, 4.0, 4.0, 1)}


def test_rows_that_nobody_has_are_left_out_and_gaps_are_marked() -> None:
    heads, body = sample().body()
    assert heads == ["octavo", "kafka"]
    cells = dict(body)
    assert len(body) == 4
    assert cells["setting"] == ["fsync before ack", "no fsync"]
    assert cells["w2 JSON records/s"] == [report.NOTHING, "1,234,567"]
    assert cells["w3 publish p99, ms"] == ["3.13 (3.05–3.21)", report.NOTHING]


def test_markdown_has_one_cell_per_column_and_names_what_is_missing() -> None:
    text = sample().to_markdown()
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table[:5]} == {4}
    assert "| w1 write 1 KiB, 64 KiB batches, 1 producer, MB/s | 200 (180–210) | 99 |" in table
    assert "- pulsar is not in the table: cannot be had" in text
    assert "- kafka, w3: failed: no reply" in text


def test_json_keeps_every_run() -> None:
    whole = json.loads(sample().to_json())
    assert whole["systems"]["octavo"]["runs"][1] == {"w1_64k_mbps": 180.0, "w3_p99_ms": 3.05}
    assert whole["systems"]["octavo"]["spread"]["w1_64k_mbps"]["median"] == 200.4
    assert whole["limits"]["spread"]["disk3_1m_mbps"]["runs"] == 1
    assert whole["unavailable"] == {"pulsar": "cannot be had"}


def test_finish_prints_and_writes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    out = io.StringIO()
    sample().finish(Console(file=out, width=140))
    assert "200 (180–210)" in out.getvalue()
    assert "pulsar is not in the table: cannot be had" in out.getvalue()
    assert json.loads((tmp_path / "results" / "latest.json").read_text())["kind"]
    assert (tmp_path / "results" / "latest.md").read_text().startswith("date 2026-01-02")


def test_a_meter_sees_cpu_and_memory_of_this_process() -> None:
    with usage.Meter({"me": [os.getpid()]}) as meter:
        before = usage.look([os.getpid()]).cpu_s
        while usage.look([os.getpid()]).cpu_s < before + 0.05:
            sum(range(100_000))
    assert meter.used["me"].cpu_s > 0.04
    assert meter.used["me"].rss_peak_mib > 5
    assert meter.total == meter.used["me"]


def test_a_process_that_is_gone_counts_as_nothing() -> None:
    assert usage.look([2**22 + 1]) == usage.Snapshot(0.0, 0, 0, 0)
    assert usage.family([2**22 + 1]) == []
    assert usage.family([os.getpid()])[0] == os.getpid()
