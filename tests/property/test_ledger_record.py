"""Any legal ledger record survives its bytes; any damage is a typed error (spec/ledger.md M-7)."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from octavo.metadata.ledger_record import LedgerMetadata, LedgerState, Quorum
from octavo.metadata.paths import Paths
from octavo.runtime.errors import MetadataCorrupt, UnsupportedVersion
from octavo.runtime.ids import EntryId, LedgerId, Member

NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=12
)
LEDGER_IDS = st.integers(0, (1 << 63) - 1).map(LedgerId)


@st.composite
def ledger_records(draw: st.DrawFn) -> LedgerMetadata:
    ensemble = draw(st.integers(1, 5))
    write = draw(st.integers(1, ensemble))
    quorum = Quorum(ensemble, write, draw(st.integers(1, write)))
    starts = sorted(draw(st.sets(st.integers(1, 1 << 40), max_size=4)) | {0})
    fragments = tuple(
        (
            EntryId(start),
            tuple(
                Member(name, uuid.UUID(int=draw(st.integers(0, (1 << 128) - 1))))
                for name in draw(st.lists(NAMES, min_size=ensemble, max_size=ensemble, unique=True))
            ),
        )
        for start in starts
    )
    state = draw(st.sampled_from(LedgerState))
    last_entry: EntryId | None = None
    length: int | None = None
    if state is LedgerState.CLOSED:
        last_entry = EntryId(draw(st.integers(-1, 1 << 40)))
        length = 0 if last_entry == -1 else draw(st.integers(0, 1 << 50))
    return LedgerMetadata(
        ledger_id=draw(LEDGER_IDS),
        quorum=quorum,
        state=state,
        fragments=fragments,
        last_entry=last_entry,
        length=length,
        custom=draw(st.dictionaries(NAMES, NAMES, max_size=3)),
        creator_token=draw(st.binary(max_size=16)),
        degraded=draw(st.booleans()),
        wanted_copies=draw(st.integers(0, 9)),
        ctime_ms=draw(st.integers(0, 1 << 45)),
    )


@given(ledger_records())
def test_record_round_trips_and_equal_records_have_equal_bytes(record: LedgerMetadata) -> None:
    data = record.to_bytes()
    parsed = LedgerMetadata.from_bytes(data, record.ledger_id)
    assert parsed == record
    assert parsed.to_bytes() == data


@given(ledger_records(), st.data())
def test_damaged_record_is_legal_or_a_typed_error(
    record: LedgerMetadata, data: st.DataObject
) -> None:
    damaged = bytearray(record.to_bytes())
    position = data.draw(st.integers(0, len(damaged) - 1))
    damaged[position] ^= data.draw(st.integers(1, 255))
    try:
        parsed = LedgerMetadata.from_bytes(bytes(damaged))
    except (MetadataCorrupt, UnsupportedVersion):
        return
    assert LedgerMetadata.from_bytes(parsed.to_bytes()) == parsed


@given(ledger_records(), st.integers(0, 1 << 41))
def test_write_set_names_qw_distinct_slots_of_the_right_fragment(
    record: LedgerMetadata, entry: int
) -> None:
    slots = record.write_set(entry)
    assert len(set(slots)) == record.quorum.write
    assert all(0 <= slot < record.quorum.ensemble for slot in slots)
    start, members = record.fragment_for(entry)
    assert start <= entry
    assert members == record.members_for(entry)


@given(ledger_records(), st.integers(-1, 1 << 41))
def test_m5_closing_keeps_every_fragment_that_holds_an_entry(
    record: LedgerMetadata, last_entry: int
) -> None:
    if record.state is LedgerState.CLOSED:
        return
    closed = record.closed(EntryId(last_entry), 0)
    assert closed.fragments[0] == record.fragments[0]
    for start, members in record.fragments:
        if start <= last_entry:
            assert (start, members) in closed.fragments
        else:
            assert start == 0 or (start, members) not in closed.fragments


@given(LEDGER_IDS)
def test_ledger_key_round_trips(ledger_id: LedgerId) -> None:
    paths = Paths("/octavo")
    assert paths.ledger_id_of(paths.ledger(ledger_id)) == ledger_id


@given(LEDGER_IDS, LEDGER_IDS)
def test_l2_key_order_is_id_order(a: LedgerId, b: LedgerId) -> None:
    paths = Paths("/octavo")
    assert (paths.ledger(a) < paths.ledger(b)) == (a < b)
