"""Text for a person's terminal: broken at words, to its width. Pipes and files get whole lines."""

from __future__ import annotations

import os
import re
import textwrap
from typing import TextIO

_WIDTH_MIN = 40
"""Narrower than that, text is left to the terminal."""
_QUOTED = re.compile(r"`[^`]*`")
_KEPT_SPACE = "\x00"
_INDENT = "  "


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person looks at it."""
    return stream is not None and not stream.closed and stream.isatty()


def width_of(stream: TextIO | None) -> int | None:
    """Columns of the terminal, None when it is none or does not say."""
    if stream is None or not is_terminal(stream):
        return None
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        return None
    return columns if columns >= _WIDTH_MIN else None


def wrapped(text: str, stream: TextIO | None, indent: str = _INDENT) -> str:
    """The text as this stream's reader wants it: `fitted` to a terminal, else as it is."""
    width = width_of(stream)
    return text if width is None else fitted(text, width, indent)


def fitted(text: str, width: int, indent: str = _INDENT) -> str:
    """The text in lines of `width`; the second and later ones get `indent`.

    Only spaces become line ends, and none within `backquotes`: commands and paths stay whole, so
    that they can be copied.
    """
    if len(text) <= width:
        return text
    kept = _QUOTED.sub(lambda found: found[0].replace(" ", _KEPT_SPACE), text)
    lines = textwrap.wrap(
        kept,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(_KEPT_SPACE, " ")
