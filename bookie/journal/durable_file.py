"""How far the log is durable, in a small file of its own that no lost segment takes along (ADR 14).

Each sync of records is noted here before they are acknowledged, without a sync: a killed process
leaves an exact note in the page cache. `sync()` makes the latest note survive a power cut; it runs
by time, on another thread than the commits. Three slots, each in a block of its own: one is synced
and left alone, one is being synced, one takes the notes. So one whole note is on disk at any
moment. A note is true whenever it can be read, for it was written after the sync it speaks of.

    slot  magic 8 bytes | sequence u64 | segment u64 | offset u64 | crc32c u32

Big-endian, a slot every 4 KiB.
"""

from __future__ import annotations

import pathlib
import struct
import threading

from octavo.bookie.faults import is_full
from octavo.bookie.journal.replay import Evidence
from octavo.bookie.journal.segment import Position
from octavo.runtime.checksum import crc32c
from octavo.runtime.disk import Disk, Register
from octavo.runtime.errors import IllegalStateError
from octavo.runtime.telemetry import get_logger

DURABLE_FILE = "durable"
"""Its name in the data directory."""
SLOT_BYTES = 4096
SLOTS = 3

_MAGIC = b"OCTVEND\x01"
_SLOT = struct.Struct(">8sQQQ")
_CRC = struct.Struct(">I")

_log = get_logger("octavo.bookie.durable-file")


def encode_slot(sequence: int, position: Position) -> bytes:
    """The bytes of one slot, without padding."""
    body = _SLOT.pack(_MAGIC, sequence, *position)
    return body + _CRC.pack(crc32c(body))


def decode_slots(data: bytes) -> Position | None:
    """The highest position of the valid slots, or None when no slot is valid."""
    found: list[Position] = []
    for start in range(0, SLOT_BYTES * SLOTS, SLOT_BYTES):
        slot = data[start : start + _SLOT.size + _CRC.size]
        if len(slot) < _SLOT.size + _CRC.size:
            break
        magic, _, segment, offset = _SLOT.unpack_from(slot)
        if magic == _MAGIC and _CRC.unpack_from(slot, _SLOT.size)[0] == crc32c(slot[: _SLOT.size]):
            found.append(Position(segment, offset))
    return max(found, default=None)


class DurableFile:
    """The file of one data directory. `note()` belongs to the commit thread, the rest to others."""

    def __init__(self, data_dir: pathlib.Path, disk: Disk) -> None:
        self._path = data_dir / DURABLE_FILE
        self._disk = disk
        self._register: Register | None = None
        self._lock = threading.Lock()
        self._sequence = 0  # guarded by _lock
        self._writing = 1  # guarded by _lock: the slot that takes notes
        self._durable = 0  # guarded by _lock: the slot that is synced
        self._dirty = False  # guarded by _lock
        self._full = False

    def read(self) -> Evidence | None:
        """What a former process left; None when nothing valid is there. Raises OSError."""
        try:
            position = decode_slots(self._disk.read(self._path))
        except FileNotFoundError:
            return None
        return None if position is None else Evidence(position, f"the file {DURABLE_FILE!r}")

    def create(self, position: Position) -> None:
        """Write the file anew, synced, and keep it open (blocking); raises OSError."""
        slot = encode_slot(0, position).ljust(SLOT_BYTES, b"\0")
        self._disk.replace(self._path, slot * SLOTS)
        self._register = self._disk.open_register(self._path)

    def note(self, position: Position) -> None:
        """Records up to `position` are synced. Raises OSError, except for a full disk.

        The file system may need space even to overwrite, and then the evidence is only older.
        """
        with self._lock:
            self._sequence += 1
            self._dirty = True
            data = encode_slot(self._sequence, position)
            register = self._register or self._open
            try:
                register.put(self._writing * SLOT_BYTES, data)
            except OSError as error:
                self._note_full(error)

    def sync(self) -> None:
        """Make the latest note survive a power cut (blocking, one caller at a time).

        Raises OSError, except for a full disk.
        """
        with self._lock:
            if not self._dirty:
                return
            self._dirty = False
            syncing = self._writing
            self._writing = SLOTS - syncing - self._durable
        try:
            self._open.sync()
        except OSError as error:
            self._note_full(error)
            return
        with self._lock:
            self._durable = syncing
        self._full = False

    def close(self) -> None:
        """Close the file without syncing."""
        if self._register is not None:
            self._register.close()
            self._register = None

    @property
    def _open(self) -> Register:
        if self._register is None:
            raise IllegalStateError("the file of the durable position is not open")
        return self._register

    def _note_full(self, error: OSError) -> None:
        if not is_full(error):
            raise error
        if not self._full:
            self._full = True
            _log.warning("evidence-not-written", cause=str(error))
