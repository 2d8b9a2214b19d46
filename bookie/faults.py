"""What an error of the operating system or of RocksDB means for a bookie: its typed cause.

The difference decides what happens next. No space: go on read-only (6.13). Not accessible now:
refuse, nothing is lost. Damaged: the index is built anew from the journal (R5), or the history is
in doubt (B-23). Anything else is the disk's failure and fail-stop (B-8). Never is one of them taken
for another: a full disk or a held lock is not lost history.
"""

from __future__ import annotations

import errno
import os
import re

from octavo.runtime.errors import (
    DiskFailed,
    StorageDamaged,
    StorageFailed,
    StorageFull,
    StorageUnavailable,
)

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
UNAVAILABLE = {
    errno.EACCES: "check the owner and mode of the data folder and the user of this process",
    errno.EPERM: "check the owner and mode of the data folder and the user of this process",
    errno.EROFS: "the file system is mounted read-only: look at the kernel's log for the reason",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files (fs.file-max)",
    errno.ENOMEM: "give the machine or the container more memory",
    errno.EAGAIN: "another process has it open: end that process first",
    errno.ENOLCK: "this file system cannot lock files: use a local one",
    errno.EBUSY: "another process has it open: end that process first",
    errno.ENOTDIR: "a plain file is where a folder should be: check --data",
    errno.EISDIR: "a folder is where a plain file should be: check --data",
    errno.ELOOP: "a symbolic link points to itself: check --data",
    errno.ENAMETOOLONG: "choose a shorter --data",
    errno.ENOTCONN: "the file system went away: mount it again",
    errno.ESTALE: "the file system went away: mount it again",
}
"""errno → what to do; all of them pass without any loss."""

_BY_TEXT = {os.strerror(number).lower(): number for number in (*FULL, *UNAVAILABLE, errno.EIO)}
_LOCK_TEXTS = ("lock hold by current process", "while lock file", "already closed", "shutdown in")
_WRITE_TEXTS = ("append", "sync", "while write", "while truncate", "while rename")
_PATH = re.compile(r"(/[^\s:,]+\.(?:sst|log|blob|json|dbtmp)|/[^\s:,]*(?:MANIFEST-\d+|CURRENT))")


def is_full(error: OSError) -> bool:
    """True if the error says that there is no space, or no quota, left."""
    return error.errno in FULL


def from_os_error(what: str, error: OSError) -> StorageFailed:
    """The typed cause of an error of a file operation; `what` says what was being done."""
    where = f" ({error.filename})" if error.filename else ""
    cause = f"{what}: {error.strerror or error}{where}"
    return _typed(cause, error.errno or 0)


def from_rocksdb(what: str, path: str, error: Exception) -> StorageFailed:
    """The typed cause of an error of the index at `path`; the binding has only texts.

    A missing file is damage here: RocksDB names files in its manifest that must be there. So is one
    that cannot be read: the index can be built anew (R5). A failed write is the disk's failure.
    """
    text = " ".join(str(error).split())
    lowered = text.lower()
    named = _PATH.search(text)
    file = named[1] if named else path
    for wording, number in _BY_TEXT.items():
        if wording in lowered:
            writing = any(wording in lowered for wording in _WRITE_TEXTS)
            if number != errno.EIO or writing:
                return _typed(f"{what}: {text}", number)
    if any(wording in lowered for wording in _LOCK_TEXTS):
        return _typed(f"{what}: {text}", errno.EAGAIN)
    return StorageDamaged(f"{what}: {file} is damaged or missing: {text}", file=file)


def _typed(cause: str, number: int) -> StorageFailed:
    if number in FULL:
        return StorageFull(cause)
    hint = UNAVAILABLE.get(number)
    if hint is not None:
        return StorageUnavailable(cause, hint=hint)
    return DiskFailed(cause)
