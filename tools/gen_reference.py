"""Write docs/reference/ from the code: settings, errors, metrics; `--check`: whether they differ.

Run as `python tools/gen_reference.py [--check]`. What a setting means is the text below its field,
its range what the code checks: nothing here is said twice.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pathlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import annotated_types
from pydantic_core import PydanticUndefined

from octavo.bookie.config import BookieConfig
from octavo.client.autorecovery.settings import AutorecoveryConfig
from octavo.client.messaging import config as client_config
from octavo.metrics import catalogue
from octavo.metrics.metric import BOOKIE, BOTH, BROKER, Metric
from octavo.proto.errors import GRPC_CODES
from octavo.runtime.config import FrozenSettings
from octavo.runtime.error_base import OctavoError, all_error_classes
from octavo.serving import topic_config
from octavo.serving.config import BrokerConfig

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
GENERATED = (
    "<!-- Written by tools/gen_reference.py; change the code, then run `make reference`. -->"
)
_SYMBOLS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_UNITS = {
    "_s": "seconds",
    "_ms": "milliseconds",
    "_bytes": "bytes",
    "_bytes_in_flight": "bytes",
    "_ratio": "part of 1",
    "_memory": "bytes",
    "_size": "bytes",
}
_COUNTS = {"ensemble_size"}


class Row(NamedTuple):
    """One setting."""

    name: str
    default: str
    allowed: str
    meaning: str


def texts_of(cls: type) -> dict[str, str]:
    """The text below each field of a class, one line each."""
    tree = ast.parse(inspect.getsource(cls))
    body = tree.body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def unit_of(name: str) -> str:
    """The unit that a name ends with."""
    if name in _COUNTS:
        return ""
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")


def shown(value: object, unit: str = "") -> str:
    """A default or a limit as a person reads it."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return f"`{value!r}`"
    if unit == "bytes" and isinstance(value, int) and value >= 1024 and value % 1024 == 0:
        for size, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if value % size == 0:
                return f"{value // size} {name}"
    return f"{value:,}" if isinstance(value, (int, float)) else f"`{value}`"


def server_rows(cls: type[FrozenSettings]) -> Iterator[Row]:
    """Settings of a server, from its model."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base is not FrozenSettings and issubclass(base, FrozenSettings):
            texts.update(texts_of(base))
    for name, field in cls.model_fields.items():
        unit = unit_of(name)
        bounds = [
            f"{symbol} {shown(getattr(limit, key), unit)}"
            for limit in field.metadata
            for key, symbol in _SYMBOLS.items()
            if isinstance(limit, getattr(annotated_types, key.capitalize(), ()))
        ]
        unset = field.default is PydanticUndefined
        default = "must be given" if unset else shown(field.default, unit)
        yield Row(name, default, ", ".join(bounds), texts.get(name, ""))


def checked_ranges(cls: type, module: ModuleType) -> dict[str, str]:
    """Ranges and choices that `__post_init__` of a client's settings checks."""
    found: dict[str, str] = {}
    tree = ast.parse(inspect.getsource(cls))
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id not in ("_check_int", "_check_choice"):
            continue
        name, _, *rest = node.args
        if not isinstance(name, ast.Constant):
            continue
        key = str(name.value)
        said = [_value(part, module, unit_of(key)) for part in rest]
        if node.func.id == "_check_int":
            found[key] = f"≥ {said[0]}, ≤ {said[1]}"
        else:
            found[key] = said[0]
    return found


def _value(node: ast.expr, module: ModuleType, unit: str) -> str:
    """A limit: its value, or the name of the setting that it is."""
    if isinstance(node, ast.Attribute):
        return f"`{node.attr}`"
    value = eval(compile(ast.Expression(node), "<limit>", "eval"), vars(module))
    if isinstance(value, tuple):
        return ", ".join(f"`{one}`" for one in value)
    return shown(value, unit)


def client_rows(cls: type[Any]) -> Iterator[Row]:
    """Settings of the SDK, from a dataclass."""
    texts, ranges = texts_of(cls), checked_ranges(cls, client_config)
    for field in dataclasses.fields(cls):
        yield Row(
            field.name,
            shown(field.default, unit_of(field.name)),
            ranges.get(field.name, ""),
            texts.get(field.name, ""),
        )


def table(rows: Iterator[Row]) -> list[str]:
    """Rows as Markdown."""
    lines = ["| name | unit | default | range | meaning |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{r.name}` | {unit_of(r.name)} | {r.default} | {r.allowed} | {r.meaning} |"
        for r in rows
    ]
    return lines


def settings_page() -> str:
    """docs/reference/settings.md."""
    lines = ["# Settings", "", GENERATED, ""]
    lines += [
        "Servers take a setting as `-X name=value`, or from the environment under their prefix and",
        "its name in capitals (`OCTAVO_BOOKIE_SEGMENT_BYTES`). Clients take it as an argument:",
        '`linger_ms=5` or `**{"linger.ms": 5}`. Unknown names are refused with a suggestion.',
        "",
    ]
    for cls in (BookieConfig, BrokerConfig, AutorecoveryConfig):
        prefix = cls.model_config.get("env_prefix", "")
        lines += [f"## `octavo {cls.__name__.removesuffix('Config').lower()}`", ""]
        lines += [f"Environment prefix `{prefix}`.", "", *table(server_rows(cls)), ""]
    for title, kind in (
        ("Client", client_config.ClientConfig),
        ("Producer", client_config.ProducerConfig),
        ("Consumer and reader", client_config.ConsumerConfig),
    ):
        lines += [f"## {title}", "", *table(client_rows(kind)), ""]
    inherited = {field.name for field in dataclasses.fields(client_config.ConsumerConfig)}
    of_groups = [row for row in client_rows(client_config.GroupConfig) if row.name not in inherited]
    lines += ["## Consumer in a group", "", "Besides those of any consumer.", ""]
    lines += [*table(iter(of_groups)), ""]
    lines += [
        "## Topics",
        "",
        "Given to `octavo topic create -c name=value` or `create_topic`.",
        "",
    ]
    lines += [f"- `{name}`" for name in topic_config.TOPIC_CONFIG_KEYS]
    return "\n".join(lines) + "\n"


def public_errors() -> list[type[OctavoError]]:
    """The classes of `octavo.errors`, without those that a test or a tool adds below them."""
    return [cls for cls in all_error_classes() if cls.__module__.startswith("octavo.runtime.error")]


def errors_page() -> str:
    """docs/reference/errors.md."""
    lines = ["# Errors", "", GENERATED, ""]
    lines += [
        "Every error is a class of `octavo.errors` below `OctavoError`, with `.code`,",
        "`.retriable`, `.hint` and `.details`. Indented classes are kinds of the one above them.",
        "",
        "| class | code | repeat? | gRPC status | meaning | hint |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    known = set(public_errors())

    def add(cls: type[OctavoError], depth: int) -> None:
        meaning = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
        lines.append(
            f"| {'&nbsp;' * 4 * depth}`{cls.__name__}` | {cls.code} | {cls.retry.value} | "
            f"{GRPC_CODES[cls].name} | {meaning} | {cls.default_hint} |"
        )
        for below in sorted(cls.__subclasses__(), key=lambda one: one.__name__):
            if below in known:
                add(below, depth + 1)

    add(OctavoError, 0)
    return "\n".join(lines) + "\n"


def metric_row(metric: Metric) -> str:
    """A metric as a line of a table."""
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    meaning = metric.meaning + (f"; needs `{metric.setting}`" if metric.setting else "")
    return f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {meaning} |"


def metrics_page() -> str:
    """docs/reference/metrics.md."""
    lines = ["# Metrics", "", GENERATED, ""]
    lines += [
        "What the pages for Prometheus show, `http://HOST:PORT/metrics` of each server. A series",
        "is left out while its value is not known; a name is always told. Histograms have buckets",
        "listed below the tables. Labels hold no principal, key or address.",
        "",
    ]
    groups = (
        ("Brokers and bookies", BOTH),
        ("Brokers", BROKER),
        ("Bookies", BOOKIE),
    )
    for title, servers in groups:
        lines += [f"## {title}", ""]
        lines += ["| name | kind | unit | labels | meaning |", "| --- | --- | --- | --- | --- |"]
        lines += [metric_row(m) for m in catalogue.ALL if m.servers == servers]
        lines += [""]
    lines += ["## Buckets", ""]
    by_buckets: dict[tuple[float, ...], list[str]] = {}
    for metric in catalogue.ALL:
        if metric.buckets:
            by_buckets.setdefault(metric.buckets, []).append(f"`{metric.name}`")
    for buckets, names in by_buckets.items():
        lines.append(f"- {', '.join(names)}: {', '.join(f'{bound:g}' for bound in buckets)}")
    return "\n".join(lines) + "\n"


PAGES = {"settings.md": settings_page, "errors.md": errors_page, "metrics.md": metrics_page}


def main() -> int:
    """Write the pages, or compare them."""
    FOLDER.mkdir(exist_ok=True)
    stale = False
    for name, page in PAGES.items():
        path, text = FOLDER / name, page()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if "--check" in sys.argv[1:]:
            print(f"{path.relative_to(ROOT)} differs from the code: run `make reference`")
            stale = True
        else:
            path.write_text(text, encoding="utf-8")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
