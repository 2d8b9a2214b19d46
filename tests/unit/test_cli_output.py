"""How commands print: four formats, records, and errors as two lines with a stable exit code."""

from __future__ import annotations

import json

import pytest
import yaml

from octavo.cli import output, records
from octavo.cli.failures import ExitCode, exit_code_for, report
from octavo.cli.output import Format, Row
from octavo.client.messaging.records import Record
from octavo.runtime import errors

ROWS: list[Row] = [
    {"name": "bookie-1", "pid": 7, "ok": True, "tags": ["a", "b"], "note": None},
    {"name": 'quo"te, comma', "pid": 12345, "ok": False, "tags": [], "note": "x: y\nz"},
]
RECORD = Record("orders", 3, 42, b"k", b'{"id":1}', [("trace", b"1"), ("trace", b"2")], 1700)


def test_table_lines_up_and_numbers_go_right() -> None:
    lines = output.to_table([{"name": "a", "pid": 7}, {"name": "long", "pid": 12345}]).splitlines()
    assert lines == ["NAME    PID", "a         7", "long  12345"]


def test_empty_table_says_so() -> None:
    assert output.to_table([], "topics") == "(no topics)\n"


def test_yaml_is_yaml() -> None:
    nested: Row = {
        "a": 1,
        "b": [{"c": "x", "d": []}, {"c": None, "d": ["y"]}],
        "e": {},
        "f": {"g": 1.5},
    }
    assert yaml.safe_load(output.to_yaml(nested)) == nested
    assert yaml.safe_load(output.to_yaml(list(ROWS))) == ROWS


def test_csv_has_a_heading_and_quotes() -> None:
    text = output.to_csv(ROWS)
    assert text.startswith("name,pid,ok,tags,note\n")
    assert '"quo""te, comma"' in text


@pytest.mark.parametrize("form", list(Format))
def test_each_format_prints(form: Format, capsys: pytest.CaptureFixture[str]) -> None:
    output.emit_rows(ROWS, form)
    output.emit_one(ROWS[0], form)
    captured = capsys.readouterr()
    assert "bookie-1" in captured.out
    assert captured.err == ""


def test_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit_rows(ROWS, Format.JSON)
    assert json.loads(capsys.readouterr().out) == ROWS


def test_record_as_json_keeps_duplicate_headers() -> None:
    assert json.loads(records.as_json(RECORD)) == {
        "topic": "orders",
        "partition": 3,
        "offset": 42,
        "timestamp_ms": 1700,
        "key": "k",
        "value": '{"id":1}',
        "headers": [["trace", "1"], ["trace", "2"]],
    }


def test_bytes_that_are_no_text_become_base64_and_null_stays_null() -> None:
    fields = json.loads(records.as_json(RECORD._replace(key=None, value=b"\xff\x00")))
    assert fields["key"] is None
    assert fields["value"] == {"base64": "/wA="}


def test_record_as_csv_and_value() -> None:
    assert records.as_csv(RECORD) == b'orders,3,42,1700,k,"{""id"":1}"\n'
    assert records.as_value(RECORD) == b'{"id":1}\n'
    assert records.as_value(RECORD._replace(value=None)) == b"\n"


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("%t[%p]@%o: %k=%s\\n", b'orders[3]@42: k={"id":1}\n'),
        ("%T %K %S %h", b"1700 1 8 trace=1,trace=2"),
        ("100%% \\t\\\\", b"100% \t\\"),
        ("", b""),
        ("\\x", b"\\x"),
    ],
)
def test_format_tokens(form: str, wanted: bytes) -> None:
    assert records.compile_format(form)(RECORD) == wanted


def test_length_of_null_is_minus_one() -> None:
    assert records.compile_format("%K")(RECORD._replace(key=None)) == b"-1"


@pytest.mark.parametrize("form", ["%x", "abc%"])
def test_unknown_token_is_a_usage_error(form: str) -> None:
    with pytest.raises(errors.ConfigError, match="unknown token"):
        records.compile_format(form)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("x"), ExitCode.USAGE),
        (errors.UnknownTopic("x"), ExitCode.NOT_FOUND),
        (errors.NoSuchLedger("x"), ExitCode.NOT_FOUND),
        (FileNotFoundError(2, "no", "f"), ExitCode.NOT_FOUND),
        (PermissionError(13, "no", "f"), ExitCode.DENIED),
        (errors.BrokerUnavailable("x"), ExitCode.UNAVAILABLE),
        (errors.NotEnoughReplicas("x"), ExitCode.UNAVAILABLE),
        (errors.RequestTimedOut("x"), ExitCode.TIMEOUT),
        (errors.DeliveryFailed("x"), ExitCode.TIMEOUT),
        (errors.TopicAlreadyExists("x"), ExitCode.ERROR),
        (KeyError("x"), ExitCode.ERROR),
    ],
)
def test_exit_codes(error: BaseException, code: ExitCode) -> None:
    assert exit_code_for(error) == code


def test_error_is_one_line_of_cause_and_one_of_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(errors.UnknownTopic("topic\n  orders is not here")) == ExitCode.NOT_FOUND
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "error: topic orders is not here",
        "hint: create it with `octavo topic create NAME`",
    ]


def test_unexpected_errors_show_no_traceback_unless_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert report(KeyError("surprise")) == ExitCode.ERROR
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv("OCTAVO_TRACE", "1")
    report(KeyError("surprise"))
    assert "KeyError" in capsys.readouterr().err
