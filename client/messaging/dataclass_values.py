"""Values of a dataclass as JSON and back (F012): typed, nested, checked in both directions.

What each field may hold is read from its annotation once, when a serializer is made; a type that
JSON could not give back as it was is refused there, not when a record is sent. None and an empty
value stay two things, and nothing comes back as another type than it was sent as. Pure.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Generic, NamedTuple, TypeVar, cast
from uuid import UUID

from octavo.runtime.errors import ConfigError

D = TypeVar("D")
_Step = Callable[[object, str], object]
"""One value in one direction; the text says where it stands, for errors."""
_MISSING = dataclasses.MISSING


class _Wrong(Exception):
    """A value that is not what its field says; `args`: where it stands, and why."""


class _Ways(NamedTuple):
    """One annotated type: what becomes JSON of it, and what comes back."""

    out: _Step
    back: _Step


class DataclassSerializer(Generic[D]):
    """Makes JSON of instances of one dataclass: `client.producer(serializer=...)`.

    Fields are bool, int, float, str, bytes, datetime, date, Decimal, UUID, an Enum, a Literal, a
    dataclass, and lists, tuples, `dict[str, ...]` and `... | None` of these.

    Raises ConfigError for a class that is none, or a field of another type.
    """

    def __init__(self, cls: type[D]) -> None:
        self._name = cls.__name__
        self._out = _Compiler().dataclass(cls, cls.__name__).out

    def __call__(self, value: D) -> bytes:
        """The bytes of one value; TypeError names the field that does not hold what it says."""
        try:
            made = self._out(value, self._name)
        except _Wrong as error:
            raise TypeError(f"{error.args[0]} {error.args[1]}") from error
        return json.dumps(made, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


class DataclassDeserializer(Generic[D]):
    """The reverse: `client.consumer(..., value_deserializer=...)`. A field that is missing gets its
    default; one that the class does not have is left out, so that it may be added to producers
    first. Raises ConfigError as `DataclassSerializer`.
    """

    def __init__(self, cls: type[D]) -> None:
        self._name = cls.__name__
        self._back = _Compiler().dataclass(cls, cls.__name__).back

    def __call__(self, data: bytes) -> D:
        """The value; ValueError names the field that is missing or holds something else."""
        read = json.loads(data, parse_constant=_no_constant)
        try:
            return cast("D", self._back(read, self._name))
        except _Wrong as error:
            raise ValueError(f"{error.args[0]} {error.args[1]}") from error


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no number of JSON")


def _wrong(where: str, wanted: str, value: object) -> _Wrong:
    return _Wrong(where, f"is to be {wanted}, not {type(value).__name__}")


def _exact(kind: type[object], of: Callable[[object], object]) -> _Step:
    """Only `kind` itself: a subclass would come back as something else."""

    def step(value: object, where: str) -> object:
        if type(value) is not kind:
            raise _wrong(where, kind.__name__, value)
        return of(value)

    return step


def _read(kind: str, of: Callable[[str], object]) -> _Step:
    """From the text that JSON has for it."""

    def step(value: object, where: str) -> object:
        if type(value) is not str:
            raise _wrong(where, f"the text of a {kind}", value)
        try:
            return of(value)
        except (ValueError, ArithmeticError) as error:
            raise _Wrong(where, f"is no {kind}: {value[:100]!r}") from error

    return step


def _text(value: object, where: str) -> object:
    if type(value) is not str:
        raise _wrong(where, "str", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _Wrong(where, f"is no valid text: {error.reason}") from error
    return value


def _float(value: object, where: str) -> object:
    if type(value) is not float and type(value) is not int:
        raise _wrong(where, "float", value)
    try:
        number = float(value)
    except OverflowError as error:
        raise _Wrong(where, "is too large for a float") from error
    if not math.isfinite(number):
        raise _Wrong(where, f"is {number}, which JSON does not have")
    return number


def _moment(value: object, where: str) -> object:
    if type(value) is not datetime:
        raise _wrong(where, "datetime", value)
    if value.fold and value.tzinfo is None:
        raise _Wrong(where, "is the second of two equal local times, which ISO text does not tell")
    return value.isoformat()


def _unpacked(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_PLAIN: Mapping[object, _Ways] = {
    bool: _Ways(_exact(bool, lambda value: value), _exact(bool, lambda value: value)),
    int: _Ways(_exact(int, lambda value: value), _exact(int, lambda value: value)),
    float: _Ways(_float, _float),
    str: _Ways(_text, _text),
    bytes: _Ways(
        _exact(bytes, lambda value: base64.b64encode(cast("bytes", value)).decode()),
        _read("bytes value in base64", _unpacked),
    ),
    datetime: _Ways(
        _moment,
        _read("datetime", datetime.fromisoformat),
    ),
    date: _Ways(
        _exact(date, lambda value: cast("date", value).isoformat()),
        _read("date", date.fromisoformat),
    ),
    Decimal: _Ways(_exact(Decimal, str), _read("Decimal", Decimal)),
    UUID: _Ways(_exact(UUID, str), _read("UUID", UUID)),
    type(None): _Ways(_exact(type(None), lambda _: None), _exact(type(None), lambda _: None)),
}


class _Compiler:
    """Turns annotations into ways; a dataclass that holds itself is met once."""

    def __init__(self) -> None:
        self._met: dict[object, _Ways] = {}

    def dataclass(self, cls: type[object], where: str) -> _Ways:
        """The ways of a dataclass with all its fields."""
        if not dataclasses.is_dataclass(cls):
            raise ConfigError(f"{where}: {cls!r} is no dataclass", hint="decorate it: @dataclass")
        known = self._met.get(cls)
        if known is not None:
            return known
        inner: dict[str, _Ways] = {}
        fields = [field for field in dataclasses.fields(cls) if field.init]
        needed = {
            field.name
            for field in fields
            if field.default is _MISSING and field.default_factory is _MISSING
        }

        def out(value: object, at: str) -> object:
            if type(value) is not cls:
                raise _wrong(at, cls.__name__, value)
            return {
                name: ways.out(getattr(value, name), f"{at}.{name}") for name, ways in inner.items()
            }

        def back(value: object, at: str) -> object:
            if type(value) is not dict:
                raise _wrong(at, f"the object of a {cls.__name__}", value)
            given = cast("dict[str, object]", value)
            for name in needed:
                if name not in given:
                    raise _Wrong(f"{at}.{name}", "is missing")
            return cls(
                **{
                    name: ways.back(given[name], f"{at}.{name}")
                    for name, ways in inner.items()
                    if name in given
                }
            )

        self._met[cls] = _Ways(out, back)
        hints = typing.get_type_hints(cls)
        for field in fields:
            inner[field.name] = self._ways(hints[field.name], f"{where}.{field.name}")
        return self._met[cls]

    def _ways(self, kind: object, where: str) -> _Ways:
        if kind in _PLAIN:
            return _PLAIN[kind]
        origin, args = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Literal:
            return _literal(args)
        if origin in (types.UnionType, typing.Union) and type(None) in args and len(args) == 2:
            return _optional(self._ways(next(a for a in args if a is not type(None)), where))
        if origin is list and len(args) == 1:
            return _many(list, self._ways(args[0], where))
        if origin is tuple and len(args) == 2 and args[1] is ...:
            return _many(tuple, self._ways(args[0], where))
        if origin is tuple and args and ... not in args:
            return _fixed([self._ways(arg, where) for arg in args])
        if origin is dict and args and args[0] is str:
            return _mapping(self._ways(args[1], where))
        if isinstance(kind, type):
            if dataclasses.is_dataclass(kind):
                return self.dataclass(kind, where)
            if issubclass(kind, Enum):
                return _enum(kind, where)
        raise ConfigError(
            f"{where} is of a type that JSON does not give back: {kind!r}",
            hint="bool, int, float, str, bytes, datetime, date, Decimal, UUID, Enum, Literal, "
            "dataclasses; list, tuple, dict[str, ...] and `... | None` of these",
        )


def _optional(ways: _Ways) -> _Ways:
    def both(step: _Step) -> _Step:
        return lambda value, at: None if value is None else step(value, at)

    return _Ways(both(ways.out), both(ways.back))


def _literal(allowed: tuple[object, ...]) -> _Ways:
    for one in allowed:
        if type(one) not in (str, int, bool):
            raise ConfigError(f"Literal of {one!r} is not given back by JSON")

    def step(value: object, where: str) -> object:
        if not any(type(value) is type(one) and value == one for one in allowed):
            raise _Wrong(where, f"is to be one of {', '.join(map(repr, allowed))}")
        return value

    return _Ways(step, step)


def _enum(kind: type[Enum], where: str) -> _Ways:
    for one in kind:
        if type(one.value) not in (str, int):
            raise ConfigError(f"{where}: {one!r} has a value that is no str or int")

    def back(value: object, at: str) -> object:
        for one in kind:
            if type(one.value) is type(value) and one.value == value:
                return one
        raise _Wrong(at, f"is no {kind.__name__}: {repr(value)[:100]}")

    return _Ways(_exact_enum(kind), back)


def _exact_enum(kind: type[Enum]) -> _Step:
    def step(value: object, where: str) -> object:
        if not isinstance(value, kind):
            raise _wrong(where, kind.__name__, value)
        return cast("object", value.value)

    return step


def _many(kind: type[list[object]] | type[tuple[object, ...]], ways: _Ways) -> _Ways:
    def out(value: object, where: str) -> object:
        if type(value) is not kind:
            raise _wrong(where, kind.__name__, value)
        items = cast("list[object]", value)
        return [ways.out(item, f"{where}[{number}]") for number, item in enumerate(items)]

    def back(value: object, where: str) -> object:
        if type(value) is not list:
            raise _wrong(where, "a list", value)
        items = cast("list[object]", value)
        return kind(ways.back(item, f"{where}[{number}]") for number, item in enumerate(items))

    return _Ways(out, back)


def _fixed(each: list[_Ways]) -> _Ways:
    def checked(value: object, where: str, kind: type[object]) -> list[object]:
        if type(value) is not kind or len(cast("list[object]", value)) != len(each):
            raise _Wrong(where, f"is to be a {kind.__name__} of {len(each)}, not {value!r:.100}")
        return list(cast("list[object]", value))

    def out(value: object, where: str) -> object:
        items = checked(value, where, tuple)
        pairs = enumerate(zip(each, items, strict=True))
        return [ways.out(item, f"{where}[{number}]") for number, (ways, item) in pairs]

    def back(value: object, where: str) -> object:
        items = checked(value, where, list)
        pairs = enumerate(zip(each, items, strict=True))
        return tuple(ways.back(item, f"{where}[{number}]") for number, (ways, item) in pairs)

    return _Ways(out, back)


def _mapping(ways: _Ways) -> _Ways:
    def both(step: _Step) -> _Step:
        def each(value: object, where: str) -> object:
            if type(value) is not dict:
                raise _wrong(where, "dict", value)
            items = cast("dict[object, object]", value).items()
            return {
                _text(key, f"key {key!r:.100} of {where}"): step(item, f"{where}[{key!r:.100}]")
                for key, item in items
            }

        return each

    return _Ways(both(ways.out), both(ways.back))
