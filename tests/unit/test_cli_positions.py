"""Where `octavo consume --from` begins."""

from __future__ import annotations

import pytest

from octavo.cli.positions import Start, parse_start, parse_target
from octavo.runtime.errors import ConfigError

NOW_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("start", Start("start")),
        ("earliest", Start("start")),
        ("end", Start("end")),
        ("latest", Start("end")),
        ("0", Start("offset", 0)),
        ("42", Start("offset", 42)),
        ("-10", Start("last", 10)),
        ("end-10", Start("last", 10)),
        ("9223372036854775807", Start("offset", (1 << 63) - 1)),
        ("@2026-01-01T00:00Z", Start("time", NOW_MS)),
        ("@2026-01-01T01:00+01:00", Start("time", NOW_MS)),
        ("@2026-01-01", Start("time", NOW_MS)),
        ("@1767225600000", Start("time", NOW_MS)),
        ("@-15m", Start("time", NOW_MS - 900_000)),
        ("@-2d", Start("time", NOW_MS - 172_800_000)),
    ],
)
def test_positions(text: str, wanted: Start) -> None:
    assert parse_start(text, NOW_MS) == wanted


@pytest.mark.parametrize("text", ["", "-0", "-", "begin", "1.5", "@", "@yesterday", "@-15", "--1"])
def test_anything_else_is_a_usage_error_with_a_hint(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_start(text, NOW_MS)
    assert "start, end" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("earliest", Start("start")),
        ("latest", Start("end")),
        ("42", Start("offset", 42)),
        ("-10", Start("shift", -10)),
        ("+10", Start("shift", 10)),
        ("-0", Start("shift", 0)),
        ("end-10", Start("last", 10)),
        ("-15m", Start("time", NOW_MS - 900_000)),
        ("@-15m", Start("time", NOW_MS - 900_000)),
        ("2026-01-01T00:00Z", Start("time", NOW_MS)),
        ("@1767225600000", Start("time", NOW_MS)),
    ],
)
def test_where_a_group_goes_on(text: str, wanted: Start) -> None:
    """A bare -N is counted from where the group is; a reader is nowhere yet."""
    assert parse_target(text, NOW_MS) == wanted


@pytest.mark.parametrize("text", ["", "-", "+", "yesterday", "1.5", "-99999999999999999999", "--1"])
def test_any_other_target_is_a_usage_error_with_a_hint(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_target(text, NOW_MS)
    assert "--to" in caught.value.cause
