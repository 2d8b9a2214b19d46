"""The error table is complete in both directions."""

from __future__ import annotations

import inspect
import re

import pytest

from octavo.proto.bookie_wire import Status
from octavo.proto.errors import GRPC_CODES, from_wire, grpc_code, status_error, to_wire
from octavo.runtime import errors as e
from octavo.runtime.error_base import all_error_classes
from octavo.runtime.errors import OctavoError


def test_every_class_has_a_grpc_code_and_a_code_of_its_own() -> None:
    classes = [
        cls for cls in all_error_classes() if cls.__module__.startswith("octavo.runtime.error")
    ]
    assert set(classes) == set(GRPC_CODES)
    assert len({cls.code for cls in classes}) == len(classes)


def _drawn() -> dict[str, str | None]:
    """Name and base of every class in the drawing of the module's text."""
    bases: list[str] = []
    found: dict[str, str | None] = {}
    for line in (e.__doc__ or "").splitlines():
        branch = re.match(r"^    ((?:[│ ]   )*)([├└]── )?([A-Z]\w+.*)$", line)
        if branch is None:
            continue
        depth = len(branch[1]) // 4 + bool(branch[2])
        names = re.split(r"  +| \(", branch[3])[0].split(", ")
        del bases[depth:]
        found.update(dict.fromkeys(names, bases[-1] if bases else None))
        bases.append(names[0])
    return found


def test_the_drawing_of_the_tree_is_the_tree() -> None:
    classes = [value for value in vars(e).values() if inspect.isclass(value)]
    real = {
        cls.__name__: None if cls is OctavoError else cls.__bases__[0].__name__
        for cls in classes
        if issubclass(cls, OctavoError)
    }
    assert _drawn() == real


def _code(cls: type[OctavoError]) -> str:
    return cls.code


CLASSES = sorted(GRPC_CODES, key=_code)


@pytest.mark.parametrize("cls", CLASSES)
def test_wire_round_trip_keeps_class_text_and_details(cls: type[OctavoError]) -> None:
    error = cls("it broke", hint="mend it", size="17")
    back = from_wire(to_wire(error))
    assert type(back) is cls
    assert (back.cause, back.hint, back.details) == ("it broke", "mend it", {"size": "17"})
    assert back.retriable == error.retriable
    assert grpc_code(back) is GRPC_CODES[cls]


def test_a_code_of_a_newer_peer_is_kept_as_text() -> None:
    wire = to_wire(e.Fenced("x"))
    wire.code = "BRAND_NEW"
    assert "BRAND_NEW" in str(from_wire(wire))


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.OK])
def test_only_explicit_negatives_become_absence(status: Status) -> None:
    """R-15: nothing but the two explicit negatives may read as "not there"."""
    negative = status in (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER)
    error = status_error(status, "read 1/2")
    assert isinstance(error, (e.NoSuchEntry, e.NoSuchLedger)) is negative


def test_an_unknown_status_is_unknown_not_absent() -> None:
    assert isinstance(status_error(999, "read"), e.ReadUnknown)


def test_the_text_names_code_cause_and_hint() -> None:
    text = str(e.UnknownTopic("topic 'x' does not exist"))
    assert text.startswith("[UNKNOWN_TOPIC] topic 'x' does not exist (hint: ")
