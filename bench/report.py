"""From measures of rounds to a table on the screen, the same as Markdown, and a JSON file."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.stats import Spread, spread

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
NOTHING = "–"

Measures = Mapping[str, float]


class Row(NamedTuple):
    """One line of the table: what it says and which measure it shows."""

    label: str
    measure: str
    pattern: str


ROWS = (
    Row("w1 write 1 KiB, 64 KiB batches, 1 producer, MB/s", "w1_64k_mbps", "{:,.0f}"),
    Row("w1 write 1 KiB, 1 MiB batches, 1 producer, MB/s", "w1_1m_mbps", "{:,.0f}"),
    Row("w1 64 KiB batches, 8 producers, MB/s", "w1_64k_8p_mbps", "{:,.0f}"),
    Row("w1 1 MiB batches, 8 producers, MB/s", "w1_1m_8p_mbps", "{:,.0f}"),
    Row("w1 1 KiB messages, not packed, MB/s", "w1_1k_mbps", "{:,.1f}"),
    Row("w1 own load tool, 64 KiB batches, MB/s", "native_w1_64k_mbps", "{:,.0f}"),
    Row("w1 own load tool, 1 KiB messages, MB/s", "native_w1_1k_mbps", "{:,.1f}"),
    Row("w2 JSON records/s", "w2_rps", "{:,.0f}"),
    Row("w3 publish p50 at 1,000/s, ms", "w3_p50_ms", "{:,.2f}"),
    Row("w3 publish p99, ms", "w3_p99_ms", "{:,.2f}"),
    Row("w3 publish p99.9, ms", "w3_p999_ms", "{:,.2f}"),
    Row("w4 end to end p50 at 500/s, ms", "w4_p50_ms", "{:,.2f}"),
    Row("w4 end to end p99, ms", "w4_p99_ms", "{:,.2f}"),
    Row("w5 catch-up as rows, MB/s", "w5_rows_mbps", "{:,.0f}"),
    Row("w5 catch-up as rows, rows/s", "w5_rows_rps", "{:,.0f}"),
    Row("w5 catch-up as Arrow, MB/s", "w5_arrow_mbps", "{:,.0f}"),
    Row("w5 JSON as rows, rows/s", "w5_json_rows_rps", "{:,.0f}"),
    Row("w5 JSON as Arrow, rows/s", "w5_json_arrow_rps", "{:,.0f}"),
    Row("w5 Arrow / rows", "poll_arrow_ratio", "{:,.1f}"),
    Row("w6 delivered to all readers, MB/s", "w6_delivered_mbps", "{:,.0f}"),
    Row("w6 readers", "w6_readers", "{:,.0f}"),
    Row("w7 CPU of servers in w1, s per GB", "w7_cpu_servers_s_per_gb", "{:,.1f}"),
    Row("w7 CPU of the client in w1, s per GB", "w7_cpu_clients_s_per_gb", "{:,.1f}"),
    Row("w7 peak memory of all servers, MiB", "w7_rss_servers_mib", "{:,.0f}"),
    Row("records read again and compared", "verified_records", "{:,.0f}"),
)
LIMIT_ROWS = (
    Row("w8 fdatasync 64 KiB blocks / 3, MB/s", "disk3_64k_mbps", "{:,.0f}"),
    Row("w8 fdatasync 1 MiB blocks / 3, MB/s", "disk3_1m_mbps", "{:,.0f}"),
    Row("w8 three files at once, 1 MiB, each, MB/s", "disk3_together_mbps", "{:,.0f}"),
    Row("w8 bare relay, 64 KiB batches, MB/s", "relay_64k_mbps", "{:,.0f}"),
    Row("w8 bare relay, 1 MiB batches, MB/s", "relay_1m_mbps", "{:,.0f}"),
    Row("w8 fdatasync of 4 KiB, p50, ms", "disk_sync_p50_ms", "{:,.2f}"),
    Row("w8 fdatasync of 4 KiB, p99, ms", "disk_sync_p99_ms", "{:,.2f}"),
    Row("w8 bare relay, 1 KiB at 1,000/s, p50, ms", "relay_p50_ms", "{:,.2f}"),
    Row("w8 bare relay, 1 KiB at 1,000/s, p99, ms", "relay_p99_ms", "{:,.2f}"),
)


class SystemResult(NamedTuple):
    """Everything about one system, all rounds."""

    setting: str
    versions: Mapping[str, str]
    runs: list[dict[str, float]]
    failures: dict[str, str]


def gather(runs: Sequence[Measures]) -> dict[str, Spread]:
    """Spread of each measure over the runs that have it."""
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: spread([run[name] for run in runs if name in run]) for name in names}


def cell(found: Spread | None, pattern: str) -> str:
    """Median, and lowest to highest in brackets when there was more than one run."""
    if found is None:
        return NOTHING
    median = pattern.format(found.median)
    low, high = pattern.format(found.low), pattern.format(found.high)
    return median if found.runs == 1 or low == high else f"{median} ({low}–{high})"


def lines(
    rows: Sequence[Row], columns: Mapping[str, Mapping[str, Spread]]
) -> list[tuple[str, list[str]]]:
    """Label and one cell per column, leaving out rows that nobody has."""
    found: list[tuple[str, list[str]]] = []
    for row in rows:
        spreads = [column.get(row.measure) for column in columns.values()]
        if any(spreads):
            found.append((row.label, [cell(each, row.pattern) for each in spreads]))
    return found


def markdown(title: str, heads: Sequence[str], body: Sequence[tuple[str, Sequence[str]]]) -> str:
    """The table for a README."""
    out = [f"| {title} | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(heads)]
    out += [f"| {label} | " + " | ".join(cells) + " |" for label, cells in body]
    return "\n".join(out) + "\n"


def show(
    title: str, heads: Sequence[str], body: Sequence[tuple[str, Sequence[str]]], screen: Console
) -> None:
    """The table on the screen."""
    table = Table(title=title)
    table.add_column("", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right")
    for label, cells in body:
        table.add_row(label, *cells)
    screen.print(table)


class Report:
    """All results of one call."""

    def __init__(self, kind: str, machine: Mapping[str, str]) -> None:
        self.kind = kind
        self.machine = dict(machine)
        self.limits: list[dict[str, float]] = []
        self.loads: list[float] = []
        """Load average before each round: says whether somebody else worked."""
        self.systems: dict[str, SystemResult] = {}
        self.unavailable: dict[str, str] = {}
        self.extra: dict[str, float] = {}

    def spreads(self) -> dict[str, dict[str, Spread]]:
        """Spread of each measure by system."""
        return {name: gather(result.runs) for name, result in self.systems.items()}

    def body(self) -> tuple[list[str], list[tuple[str, list[str]]]]:
        """Column heads and lines of the main table."""
        columns = self.spreads()
        settings = [result.setting for result in self.systems.values()]
        return list(columns), [("setting", settings), *lines(ROWS, columns)]

    def limit_body(self) -> list[tuple[str, list[str]]]:
        """Lines of the table of limits."""
        return lines(LIMIT_ROWS, {"limits": gather(self.limits)})

    def to_json(self) -> str:
        """The text of latest.json."""
        systems = {
            name: {
                "setting": result.setting,
                "versions": dict(result.versions),
                "runs": result.runs,
                "spread": {key: value._asdict() for key, value in gather(result.runs).items()},
                "failures": result.failures,
            }
            for name, result in self.systems.items()
        }
        limits = {key: value._asdict() for key, value in gather(self.limits).items()}
        whole = {
            "kind": self.kind,
            "machine": self.machine,
            "load_before_rounds": self.loads,
            "limits": {"runs": self.limits, "spread": limits},
            "systems": systems,
            "unavailable": self.unavailable,
            "extra": self.extra,
        }
        return json.dumps(whole, indent=2) + "\n"

    def to_markdown(self) -> str:
        """Tables and facts to paste into the README."""
        heads, body = self.body()
        facts = ", ".join(f"{key} {value}" for key, value in self.machine.items())
        parts = [f"{facts}.\n", markdown("measure: median (lowest–highest)", heads, body)]
        if self.limits:
            parts.append(markdown("limits in the same run", ["this machine"], self.limit_body()))
        parts += [
            f"- {name}: {', '.join(f'{key} {value}' for key, value in result.versions.items())}"
            for name, result in self.systems.items()
        ]
        parts += [f"- {name} is not in the table: {why}" for name, why in self.unavailable.items()]
        parts += [
            f"- {name}, {what}: failed: {why}"
            for name, result in self.systems.items()
            for what, why in result.failures.items()
        ]
        return "\n".join(parts) + "\n"

    def finish(self, screen: Console) -> None:
        """Print the tables, write latest.json and latest.md."""
        heads, body = self.body()
        rounds = max((len(result.runs) for result in self.systems.values()), default=0)
        what = f"median (lowest–highest) of {rounds} rounds" if rounds > 1 else "one round"
        show(f"{self.kind}: {what}", heads, body, screen)
        if self.limits:
            show("limits of this machine in the same run", ["now"], self.limit_body(), screen)
        for name, why in self.unavailable.items():
            screen.print(f"{name} is not in the table: {why}", markup=False)
        for name, result in self.systems.items():
            for what, why in result.failures.items():
                screen.print(f"{name}, {what}: failed: {why}", markup=False)
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "latest.json").write_text(self.to_json(), encoding="utf-8")
        (RESULTS / "latest.md").write_text(self.to_markdown(), encoding="utf-8")
        screen.print(f"written: {RESULTS / 'latest.json'}, latest.md", markup=False)
