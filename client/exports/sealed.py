"""Control files of an export: JSON objects that say when they are damaged (P8). No I/O.

Each holds a `crc32c` over its other fields, in `json.dumps` form with sorted keys and no spaces: a
damaged file is refused by name and never believed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from octavo.runtime.checksum import crc32c
from octavo.runtime.errors import MetadataCorrupt, UnsupportedVersion

FORMAT_VERSION = 2
INDEXED_VERSION = 3
"""Of a control file that speaks of indexes; builds that know none refuse it."""
READABLE_BYTES_MAX = 64 << 10
"""Smaller files have a line for each value; a list of 100,000 files is made in a third of the time
without."""
_CRC_FIELD = "crc32c"


def checksum_of(body: Mapping[str, object]) -> int:
    """CRC32C of a control file's fields, without the field that holds it."""
    rest = {name: value for name, value in body.items() if name != _CRC_FIELD}
    return crc32c(_canonical(rest).encode())


def sealed(body: Mapping[str, object]) -> bytes:
    """The bytes of a control file: the object with its checksum."""
    text = _canonical(body)
    crc = crc32c(text.encode())
    if len(text) < READABLE_BYTES_MAX:
        return json.dumps({**body, _CRC_FIELD: crc}, indent=1, sort_keys=True).encode()
    return f'{text[:-1]},"{_CRC_FIELD}":{crc}}}'.encode()


def _canonical(body: Mapping[str, object]) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"))


def parse_sealed(data: bytes, name: str) -> dict[str, object]:
    """The fields of a control file; raises MetadataCorrupt, UnsupportedVersion with its `name`."""
    try:
        body: object = json.loads(data)
    except ValueError as error:
        raise MetadataCorrupt(f"{name} is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise MetadataCorrupt(f"{name} is not a JSON object")
    found = cast("dict[str, object]", body)
    version = found.get("format_version")
    if version not in (FORMAT_VERSION, INDEXED_VERSION):
        raise UnsupportedVersion(
            f"{name} has format version {version!r}, known are {FORMAT_VERSION} and "
            f"{INDEXED_VERSION}",
            hint="read it with the version that wrote it, or export into a new folder",
        )
    if found.pop(_CRC_FIELD, None) != checksum_of(found):
        raise MetadataCorrupt(f"{name} is damaged: its checksum does not match")
    return found
