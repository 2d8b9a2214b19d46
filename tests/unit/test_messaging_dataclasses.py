"""Dataclasses as values (F012): what was sent comes back, and an error names the field."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.client.messaging.dataclass_values import DataclassDeserializer, DataclassSerializer
from octavo.client.messaging.producing.serializers import value_converter
from octavo.client.messaging.reading.deserializers import Deserializers
from octavo.client.messaging.records import Record
from octavo.runtime.errors import ConfigError, DeserializationFailed


class State(Enum):
    NEW = "new"
    PAID = "paid"


class Name(StrEnum):
    ONE = "one"


@dataclass(frozen=True)
class Line:
    article: str
    price: Decimal
    note: str | None = None
    tags: tuple[str, ...] = ()


@dataclass
class Order:
    number: int
    weight: float
    open: bool
    raw: bytes
    at: datetime
    day: date
    key: UUID
    state: State
    kind: Literal["a", 1]
    lines: list[Line]
    limits: dict[str, int]
    corner: tuple[int, str]
    parent: Order | None = None
    shown: str = field(default="", init=False)


LINES = st.builds(
    Line,
    article=st.text(),
    price=st.decimals(allow_nan=False, allow_infinity=False),
    note=st.none() | st.text(),
    tags=st.lists(st.text(), max_size=3).map(tuple),
)
ORDERS = st.builds(
    Order,
    number=st.integers(),
    weight=st.floats(allow_nan=False, allow_infinity=False),
    open=st.booleans(),
    raw=st.binary(),
    at=st.datetimes(timezones=st.none() | st.just(UTC)).map(lambda at: at.replace(fold=0)),
    day=st.dates(),
    key=st.uuids(),
    state=st.sampled_from(State),
    kind=st.sampled_from(["a", 1]),
    lines=st.lists(LINES, max_size=3),
    limits=st.dictionaries(st.text(), st.integers(), max_size=3),
    corner=st.tuples(st.integers(), st.text()),
    parent=st.none(),
)


@settings(max_examples=40)
@given(ORDERS, ORDERS)
def test_f012_what_is_sent_comes_back_with_its_types(order: Order, parent: Order) -> None:
    order.parent = parent
    data = DataclassSerializer(Order)(order)
    back = DataclassDeserializer(Order)(data)
    assert back == order
    assert repr(back) == repr(order)  # 1 and True, 1 and 1.0 are equal, yet not the same
    json.loads(data)


def order(**changed: Any) -> Order:
    values: dict[str, Any] = {
        "number": 1,
        "weight": 1.5,
        "open": True,
        "raw": b"",
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "day": date(2026, 1, 1),
        "key": UUID(int=1),
        "state": State.NEW,
        "kind": "a",
        "lines": [Line("x", Decimal(1))],
        "limits": {},
        "corner": (1, ""),
    }
    return Order(**(values | changed))


def test_f012_none_and_empty_stay_two_things() -> None:
    write, read = DataclassSerializer(Line), DataclassDeserializer(Line)
    for note in (None, ""):
        assert read(write(Line("", Decimal(0), note))).note == note
    convert = value_converter(write)  # type: ignore[arg-type]
    assert convert(None) is None  # a tombstone is no value of the class


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"number": True}, r"Order\.number is to be int, not bool"),
        ({"number": "1"}, r"Order\.number"),
        ({"weight": float("nan")}, r"Order\.weight is nan"),
        ({"at": datetime(2026, 1, 1, fold=1)}, r"Order\.at is the second of two"),
        ({"weight": 10**400}, r"Order\.weight is too large"),
        ({"raw": "text"}, r"Order\.raw"),
        ({"day": datetime(2026, 1, 1)}, r"Order\.day is to be date, not datetime"),
        ({"kind": True}, r"Order\.kind is to be one of 'a', 1"),
        ({"state": "new"}, r"Order\.state"),
        ({"lines": [Line("x", Decimal(1)), Line("x", 1)]}, r"Order\.lines\[1\]\.price"),  # type: ignore[arg-type]
        ({"lines": [Line(Name.ONE, Decimal(1))]}, r"Order\.lines\[0\]\.article"),
        ({"lines": [Line("\ud800", Decimal(1))]}, r"article is no valid text"),
        ({"limits": {1: 1}}, r"key 1 of Order\.limits"),
        ({"limits": {"a": None}}, r"Order\.limits\['a'\]"),
        ({"corner": (1,)}, r"Order\.corner is to be a tuple of 2"),
        ({"corner": (1, 2)}, r"Order\.corner\[1\]"),
        ({"parent": 5}, r"Order\.parent is to be Order, not int"),
    ],
)
def test_f012_an_error_of_sending_names_the_field(changed: dict[str, object], named: str) -> None:
    with pytest.raises(TypeError, match=named):
        DataclassSerializer(Order)(order(**changed))


def test_f012_a_subclass_is_refused_as_it_would_come_back_as_its_base() -> None:
    @dataclass(frozen=True)
    class Longer(Line):
        more: int = 0

    with pytest.raises(TypeError, match="Line is to be Line, not Longer"):
        DataclassSerializer(Line)(Longer("x", Decimal(1)))


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b'{"article":"x"}', r"Line\.price is missing"),
        (b'{"article":5,"price":"1"}', r"Line\.article"),
        (b'{"article":"x","price":"one"}', r"Line\.price is no Decimal: 'one'"),
        (b'{"article":"x","price":"1","tags":["a",null]}', r"Line\.tags\[1\]"),
        (b"[]", r"Line is to be the object of a Line, not list"),
        (b'{"article":NaN}', "NaN"),
        (b"{", "Expecting"),
    ],
)
def test_f012_an_error_of_reading_names_the_field_and_the_record(data: bytes, named: str) -> None:
    record = Record("t", 3, 7, None, data, (), 0)
    reading = Deserializers(None, DataclassDeserializer(Line))
    with pytest.raises(DeserializationFailed, match=named) as caught:
        reading.one(record)
    assert caught.value.details["offset"] == 7


def test_f012_a_missing_field_gets_its_default_and_an_unknown_one_is_left_out() -> None:
    read = DataclassDeserializer(Line)
    assert read(b'{"article":"x","price":"1","new":[1]}') == Line("x", Decimal(1))


def test_f012_types_that_json_does_not_give_back_are_refused_at_once() -> None:
    @dataclass
    class Bad:
        value: set[int]

    @dataclass
    class Either:
        value: int | str

    @dataclass
    class Numbered:
        value: dict[int, str]

    class Odd(Enum):
        HALF = 0.5

    @dataclass
    class Odds:
        value: Odd

    for cls in (Bad, Either, Numbered, Odds):
        cls.__module__ = __name__
        globals().update({"Odd": Odd})
        for way in (DataclassSerializer[Any], DataclassDeserializer[Any]):
            with pytest.raises(ConfigError, match="value"):
                way(cls)
    with pytest.raises(ConfigError, match="is no dataclass"):
        DataclassSerializer(int)
