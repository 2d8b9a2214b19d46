"""What somebody may have meant by a name that is not known (U4)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint naming the closest known name, whatever its case, or all when none is close."""
    names = sorted(known)
    folded = {name.casefold(): name for name in names}
    close = difflib.get_close_matches(word.casefold(), folded, n=1)
    return f"did you mean {folded[close[0]]!r}?" if close else f"known names: {', '.join(names)}"
