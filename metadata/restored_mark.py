"""What a restoration leaves in the metadata: that it happened, and a name for it.

Bookies compare the name with the one they know: a store that was restored since knows less than
they do, whatever else it says, and nothing is deleted for what it does not know (G-3, ADR 51).
Servers look for the mark of a restoration that was cut short, and do not start beside it.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict, dataclass

from octavo.metadata.paths import Paths
from octavo.metadata.settled import SettledWrites
from octavo.runtime.errors import IllegalStateError, MetadataCorrupt


@dataclass(frozen=True)
class RestoredMark:
    """The last restoration of a cluster's metadata."""

    nonce: str
    """Tells it from any other."""
    made_ms: int
    """When the copy was made."""
    restored_ms: int
    epoch: int
    """Of ids, from then on."""

    def to_bytes(self) -> bytes:
        """The mark as stored."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> RestoredMark:
        """Parse; raises MetadataCorrupt."""
        try:
            fields = json.loads(data)
            return cls(
                str(fields["nonce"]),
                int(fields["made_ms"]),
                int(fields["restored_ms"]),
                int(fields["epoch"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise MetadataCorrupt(f"the mark of a restoration: {error}") from error

    @property
    def words(self) -> str:
        """For people."""
        made, restored = (_said(ms) for ms in (self.made_ms, self.restored_ms))
        return f"the metadata was restored at {restored} from a copy made at {made}"


async def restored_mark(writes: SettledWrites, paths: Paths) -> RestoredMark | None:
    """The last restoration as of now; None: there was none. Raises MetadataUnavailable."""
    found = await writes.read(paths.restored)
    return None if found is None else RestoredMark.from_bytes(found.value)


async def require_whole(writes: SettledWrites, paths: Paths) -> None:
    """Raise IllegalStateError while a restoration has begun and not ended."""
    if await writes.read(paths.restoring) is not None:
        raise IllegalStateError(
            "the metadata is being restored, or was in part",
            hint="run `octavo metadata restore` with the same file to its end",
        )


def _said(wall_ms: int) -> str:
    when = datetime.datetime.fromtimestamp(wall_ms / 1000, tz=datetime.UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
