"""Keys, values and headers from users (P4, first-hour.md)."""

from __future__ import annotations

import pytest

from octavo.client.messaging.producing.serializers import (
    header_list,
    headers_bytes,
    key_converter,
    value_converter,
)
from octavo.runtime.errors import InvalidRecord


def test_bytes_stay_str_is_utf8_none_stays() -> None:
    for convert in (key_converter(None), value_converter(None)):
        assert convert(b"x") == b"x"
        assert convert("größe") == "größe".encode()
        assert convert(None) is None
        assert convert(bytearray(b"y")) == b"y"
        assert convert(memoryview(b"z")) == b"z"


@pytest.mark.parametrize("value", [5, 1.5, {"a": 1}, [1], True])
def test_other_types_name_the_fix(value: object) -> None:
    with pytest.raises(TypeError, match='serializer="json"'):
        value_converter(None)(value)
    with pytest.raises(TypeError, match='serializer="json"'):
        key_converter(None)(value)


def test_json() -> None:
    convert = value_converter("json")
    assert convert({"a": [1, None], "ö": "x"}) == '{"a":[1,null],"ö":"x"}'.encode()
    assert convert("text") == b'"text"'
    assert convert(b"raw") == b"raw"
    assert convert(None) is None
    assert key_converter("json")(5) == b"5"
    assert key_converter("json")("text") == b"text"


def test_callable_must_return_bytes() -> None:
    assert value_converter(lambda value: str(value).encode())(5) == b"5"
    with pytest.raises(TypeError, match="returned str"):
        value_converter(lambda value: str(value))(5)  # type: ignore[arg-type, return-value]


def test_headers_keep_order_and_duplicates() -> None:
    assert header_list([("a", b"1"), ("a", None), ("b", "x")]) == [
        ("a", b"1"),
        ("a", None),
        ("b", b"x"),
    ]
    assert header_list({"a": b"1"}) == [("a", b"1")]
    assert headers_bytes([("ab", b"123")]) == 17


@pytest.mark.parametrize("headers", ["text", 5, [("a",)], [["a", b"1"]], [("a", 5)]])
def test_bad_headers_are_type_errors(headers: object) -> None:
    with pytest.raises(TypeError, match="header"):
        header_list(headers)


def test_header_names_are_non_empty_text() -> None:
    for name in ("", 5):
        with pytest.raises(InvalidRecord):
            header_list([(name, b"")])
    with pytest.raises(UnicodeEncodeError):
        header_list([("\ud800", b"")])
