"""Records of groups as bytes: every value comes back, keys are what they were, damage is typed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.proto.group_records import (
    TEXT_BYTES_MAX,
    AssignmentRecord,
    GroupRecord,
    Kind,
    MemberRecord,
    OffsetKey,
    OffsetRecord,
    Record,
    Slot,
    StoredRecord,
    Subscription,
    TargetRecord,
    Value,
    decode,
    encode,
    size_hint_bytes,
)
from octavo.runtime.errors import CorruptEntry, InvalidRequest, UnsupportedVersion

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
EPOCHS = st.integers(0, 2**63 - 1)
SLOTS = st.builds(Slot, TEXTS, st.integers(0, 2**32 - 1))
HELD = st.lists(st.tuples(SLOTS, EPOCHS), unique_by=lambda one: one[0]).map(tuple)
IDS = st.text("0123456789abcdef", max_size=32)
LATER = st.lists(st.tuples(IDS, st.integers(0, 2**32 - 1)), max_size=4).map(tuple)
SUBSCRIPTIONS = st.builds(
    Subscription,
    st.frozensets(TEXTS, max_size=4),
    st.none() | TEXTS,
    st.none() | TEXTS,
    st.none() | TEXTS,
    st.floats(allow_nan=False),
    TEXTS,
    TEXTS,
)
VALUES: dict[Kind, st.SearchStrategy[Value]] = {
    Kind.GROUP: st.builds(
        GroupRecord, EPOCHS, EPOCHS, st.integers(0, 2**64 - 1), st.none() | EPOCHS, LATER
    ),
    Kind.MEMBER: st.builds(MemberRecord, st.none() | TEXTS, SUBSCRIPTIONS),
    Kind.TARGET: st.builds(TargetRecord, st.lists(SLOTS, unique=True).map(tuple)),
    Kind.ASSIGNMENT: st.builds(
        AssignmentRecord, EPOCHS, EPOCHS, EPOCHS, EPOCHS, EPOCHS, st.booleans(), HELD, HELD
    ),
    Kind.OFFSET: st.builds(
        OffsetRecord, EPOCHS, st.none() | st.integers(-(2**31), 2**31 - 1), TEXTS, EPOCHS
    ),
}


@st.composite
def records(draw: st.DrawFn) -> Record:
    kind = draw(st.sampled_from(list(Kind)))
    subject: str | OffsetKey = ""
    if kind is Kind.OFFSET:
        subject = draw(st.builds(OffsetKey, TEXTS, TEXTS, st.integers(0, 2**32 - 1)))
    elif kind is not Kind.GROUP:
        subject = draw(TEXTS)
    return Record(kind, subject, draw(st.none() | VALUES[kind]))


@settings(max_examples=100, deadline=None)
@given(TEXTS, records())
def test_every_record_comes_back(group_id: str, record: Record) -> None:
    assert decode(encode(group_id, record)) == (group_id, record)


REAL_SLOTS = st.builds(Slot, st.just("0123456789abcdef" * 2), st.integers(0, 9_999))


@settings(max_examples=60, deadline=None)
@given(
    TEXTS,
    records(),
    st.lists(st.tuples(REAL_SLOTS, EPOCHS), unique_by=lambda one: one[0], max_size=60).map(tuple),
)
def test_a_size_is_known_without_the_bytes(
    group_id: str, record: Record, held: tuple[tuple[Slot, int], ...]
) -> None:
    """What bounds a batch is right within a factor of two, and never too small by more."""
    match record.value:
        case TargetRecord():
            record = record._replace(value=TargetRecord(tuple(slot for slot, _ in held)))
        case AssignmentRecord():
            record = record._replace(value=record.value._replace(owned=held, pending=()))
        case _:
            pass
    key, value = encode(group_id, record)
    assert len(key) + len(value or b"") <= 2 * size_hint_bytes(group_id, record)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TEXTS, records()), max_size=8))
def test_keys_are_equal_only_for_one_subject(found: list[tuple[str, Record]]) -> None:
    subjects = {(group_id, record.kind, record.subject) for group_id, record in found}
    keys = {encode(group_id, record).key for group_id, record in found}
    assert len(keys) == len(subjects)


@settings(max_examples=100, deadline=None)
@given(records(), st.data())
def test_damage_is_typed(record: Record, data: st.DataObject) -> None:
    """A batch's checksum finds damage first; whatever passes it is refused by name, or reads."""
    stored = encode("g", record)
    broken = [stored.key, stored.value or b""]
    place = data.draw(st.integers(0, 1 if stored.value else 0))
    at = data.draw(st.integers(0, len(broken[place]) - 1))
    cut = data.draw(st.booleans())
    byte = bytes((broken[place][at] ^ data.draw(st.integers(1, 255)),))
    broken[place] = broken[place][:at] + (b"" if cut else byte + broken[place][at + 1 :])
    value = broken[1] if stored.value is not None else None
    try:
        group_id, found = decode(StoredRecord(broken[0], value))
    except (CorruptEntry, UnsupportedVersion):
        return
    assert isinstance(group_id, str)
    assert found.value is None or type(found.value) is type(record.value) or place == 0


def test_the_layout_stays() -> None:
    """Bytes of this version, written down: logs that exist hold them."""
    offset = Record(Kind.OFFSET, OffsetKey("ab", "t", 258), OffsetRecord(5, 7, "x", 9))
    key, value = encode("g", offset)
    assert key.hex() == "0105" + "010067" + "02006162" + "010074" + "02010000"
    assert value is not None
    assert value.hex() == "01" + "0805" + "1007" + "1a0178" + "2009"
    key, value = encode("g", Record(Kind.GROUP, "", GroupRecord(3, 2, 1, 0)))
    assert key.hex() == "0101" + "010067"
    assert value is not None
    assert value.hex() == "01" + "0803" + "1002" + "19" + "0100000000000000" + "2000"
    _, value = encode("g", Record(Kind.GROUP, "", GroupRecord(3, 2, later=(("ab", 4),))))
    assert value is not None
    assert value.hex() == "01" + "0803" + "1002" + "2a06" + "0a026162" + "1004"
    assigned = AssignmentRecord(4, 3, 2, 5, 6, True, ((Slot("a", 0), 1), (Slot("a", 9), 4)), ())
    key, value = encode("g", Record(Kind.ASSIGNMENT, "m", assigned))
    assert key.hex() == "0104" + "010067" + "01006d"
    assert value is not None
    assert value.hex() == (
        "01" + "0804" + "1003" + "1802" + "2005" + "2806" + "3001" + "3a0b" + "0a0161"
        "12020009" + "1a020104"
    )
    assert encode("g", Record(Kind.TARGET, "m", None)) == (bytes.fromhex("010301006701006d"), None)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("0201010067", "01", UnsupportedVersion),
        ("0109010067", "01", UnsupportedVersion),
        ("0101010067", "02", UnsupportedVersion),
        ("0101010067", "", CorruptEntry),
        ("0101010067", "01ff", CorruptEntry),
        ("0101020067", "01", CorruptEntry),
        ("010101006767", "01", CorruptEntry),
        ("01010100ff", "01", CorruptEntry),
        ("01", "01", CorruptEntry),
        ("", "01", CorruptEntry),
        ("010301006701006d", "010a06" + "0a0161" + "1a0101", CorruptEntry),
    ],
)
def test_what_cannot_be_read_says_why(key: str, value: str, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        decode(StoredRecord(bytes.fromhex(key), bytes.fromhex(value)))
    assert "group record" in str(caught.value) or "record cannot be read" in str(caught.value)
    if error is UnsupportedVersion:
        assert "newer broker" in str(caught.value.hint)  # type: ignore[attr-defined]


def test_a_name_longer_than_its_length_field_is_refused() -> None:
    fits, too_long = "x" * TEXT_BYTES_MAX, "x" * (TEXT_BYTES_MAX + 1)
    assert decode(encode(fits, Record(Kind.GROUP, "", None)))[0] == fits
    with pytest.raises(InvalidRequest):
        encode(too_long, Record(Kind.GROUP, "", None))
