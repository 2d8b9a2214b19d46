"""The one door to the modules that need pyarrow, opened on the first Arrow call.

`import octavo` and row-wise use must not pay for pyarrow; everything else imports at the top.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from octavo.client.messaging.producing.arrow import ArrowSending
    from octavo.client.messaging.reading.arrow import ArrowReading


def arrow_sending() -> ArrowSending:
    """The functions of `octavo.client.messaging.producing.arrow`."""
    module = import_module("octavo.client.messaging.producing.arrow")
    return cast("ArrowSending", module.FUNCTIONS)


def arrow_reading() -> ArrowReading:
    """The functions of `octavo.client.messaging.reading.arrow`."""
    module = import_module("octavo.client.messaging.reading.arrow")
    return cast("ArrowReading", module.FUNCTIONS)
