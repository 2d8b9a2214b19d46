"""What an error of the operating system means to the person who met it: where, what, what to do.

Owns the table of hints by errno and the naming of errors that know no path: writing to an open file
fails without saying which. A bookie's own translation, which decides about its data, is
`octavo.bookie.faults`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager

_RIGHTS = "check its owner and mode (`ls -ld`) and the user you are; or choose another place"
HINTS = {
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: "that file system is read-only: choose another place, or mount it for writing",
    errno.ENOSPC: "make room on that disk (`df -h`), or choose a place on another one",
    errno.EDQUOT: "the quota is used up: make room, have it raised, or choose another place",
    errno.EFBIG: "the limit of file sizes is reached (`ulimit -f`): raise it",
    errno.ENOENT: "check the path: something in it does not exist",
    errno.ENOTDIR: "a plain file is where a folder should be: check the path",
    errno.EISDIR: "a folder is where a plain file should be: check the path",
    errno.EEXIST: "it exists already: choose another name",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.ELOOP: "a symbolic link points to itself: check the path",
    errno.EXDEV: "both must be on the same file system",
    errno.EIO: "the device failed: look at the kernel's log (`dmesg`)",
    errno.ESTALE: "the file system went away: mount it again",
    errno.ENOTCONN: "the other end went away: try again",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
    errno.ENFILE: "raise the system's limit of open files (`sysctl fs.file-max`)",
    errno.ENOMEM: "give the machine or the container more memory",
    errno.EAGAIN: "the system is short of processes or threads (`ulimit -u`), or try again",
    errno.EBUSY: "another process holds it: end that process first",
    errno.ETXTBSY: "another process runs it: end that process first",
    errno.ENOLCK: "this file system cannot lock files: choose a place on a local one",
    errno.ENOTSUP: "this file system cannot do that: choose a place on a local one",
    errno.EINVAL: "this file system or device cannot do that: choose another place",
    errno.EPIPE: "whatever read it ended: start that again",
    errno.EBADF: "it is closed: leave it open, or name a file instead",
    errno.EADDRINUSE: "stop what listens there, or choose another port",
    errno.EADDRNOTAVAIL: "this machine has no such address: check the host",
    errno.EAFNOSUPPORT: "this machine has no such kind of address: check the host",
    errno.ECONNREFUSED: "nothing listens there: check the address",
    errno.EHOSTUNREACH: "check the address and the network",
    errno.ENETUNREACH: "check the address and the network",
}
"""errno → what to do."""
_OTHERWISE = "what the system said is all there is; OCTAVO_TRACE=1 shows where it said so"


def explained(error: OSError) -> tuple[str, str]:
    """Cause and hint; the cause begins with the path, when one is known.

    Where the place that raised it knew better what to do, it left a note (`add_note`).
    """
    where = f"{_path(error.filename)}: " if error.filename is not None else ""
    to = f" (to {_path(error.filename2)})" if error.filename2 is not None else ""
    what = error.strerror or str(error) or type(error).__name__
    notes: list[str] = getattr(error, "__notes__", [])
    return f"{where}{what}{to}", notes[-1] if notes else HINTS.get(error.errno or 0, _OTHERWISE)


@contextmanager
def naming(path: str | os.PathLike[str]) -> Generator[None]:
    """Errors of the system without a path get this one; their class and errno stay."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def _path(name: object) -> str:
    return os.fsdecode(name) if isinstance(name, (str, bytes)) else f"descriptor {name}"
