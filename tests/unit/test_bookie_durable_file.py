"""The file of the durable position (ADR 14)."""

from __future__ import annotations

import errno
import pathlib

import pytest

from octavo.bookie.journal.durable_file import (
    DURABLE_FILE,
    SLOT_BYTES,
    SLOTS,
    DurableFile,
    decode_slots,
    encode_slot,
)
from octavo.bookie.journal.segment import Position
from octavo.runtime.disk import RealDisk, Register


class FailingRegister:
    """Fails with an error number while one is set."""

    def __init__(self, inner: Register) -> None:
        self._inner = inner
        self.error = 0

    def put(self, offset: int, data: bytes) -> None:
        self._fail()
        self._inner.put(offset, data)

    def sync(self) -> None:
        self._fail()
        self._inner.sync()

    def close(self) -> None:
        self._inner.close()

    def _fail(self) -> None:
        if self.error:
            raise OSError(self.error, "injected")


class FailingDisk(RealDisk):
    """Hands out registers that fail on command."""

    register: FailingRegister

    def open_register(self, path: pathlib.Path) -> Register:
        self.register = FailingRegister(super().open_register(path))
        return self.register


def test_the_latest_note_is_read_back(tmp_path: pathlib.Path) -> None:
    file = DurableFile(tmp_path, RealDisk())
    assert file.read() is None
    file.create(Position(3, 128))
    for offset in range(200, 900, 100):
        file.note(Position(3, offset))
        found = file.read()
        assert found is not None
        assert found.position == Position(3, offset)
        if offset % 200 == 0:
            file.sync()
    file.close()


def test_a_note_never_touches_the_slot_that_is_synced(tmp_path: pathlib.Path) -> None:
    """A torn write takes at most the slot it went to: the others still name what was synced."""
    file = DurableFile(tmp_path, RealDisk())
    file.create(Position(1, 128))
    path = tmp_path / DURABLE_FILE
    synced = Position(1, 128)
    for offset in range(200, 2000, 100):
        before = path.read_bytes()
        file.note(Position(1, offset))
        after = path.read_bytes()
        changed = [
            slot
            for slot in range(SLOTS)
            if before[slot * SLOT_BYTES :][:SLOT_BYTES] != after[slot * SLOT_BYTES :][:SLOT_BYTES]
        ]
        assert len(changed) == 1
        torn = bytearray(after)
        torn[changed[0] * SLOT_BYTES + 3] ^= 1
        found = decode_slots(bytes(torn))
        assert found is not None
        assert found >= synced
        if offset % 300 == 0:
            file.sync()
            synced = Position(1, offset)
    file.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_only_makes_the_evidence_older(tmp_path: pathlib.Path, number: int) -> None:
    disk = FailingDisk()
    file = DurableFile(tmp_path, disk)
    file.create(Position(1, 128))
    disk.register.error = number
    file.note(Position(1, 500))
    file.sync()
    found = file.read()
    assert found is not None
    assert found.position == Position(1, 128)
    disk.register.error = 0
    file.note(Position(1, 600))
    file.sync()
    found = file.read()
    assert found is not None
    assert found.position == Position(1, 600)
    file.close()


def test_b8_any_other_error_is_the_callers(tmp_path: pathlib.Path) -> None:
    disk = FailingDisk()
    file = DurableFile(tmp_path, disk)
    file.create(Position(1, 128))
    disk.register.error = errno.EIO
    with pytest.raises(OSError, match="injected"):
        file.note(Position(1, 500))
    with pytest.raises(OSError, match="injected"):
        file.sync()
    file.close()


def test_bytes_that_are_no_slots_prove_nothing() -> None:
    assert decode_slots(b"") is None
    assert decode_slots(bytes(SLOT_BYTES * SLOTS)) is None
    slot = bytearray(encode_slot(7, Position(2, 300)))
    assert decode_slots(bytes(slot)) == Position(2, 300)
    for at in range(len(slot)):
        changed = bytearray(slot)
        changed[at] ^= 0x20
        assert decode_slots(bytes(changed)) is None
