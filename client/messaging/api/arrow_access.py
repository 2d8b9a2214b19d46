"""The one door to the modules that need pyarrow, opened on the first Arrow call.

`import octavo` and row-wise use must not pay for pyarrow; everything else imports at the top.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from octavo.client.messaging.api.arrow import ArrowFunctions


def arrow_functions() -> ArrowFunctions:
    """The functions of `octavo.client.messaging.api.arrow`."""
    return cast("ArrowFunctions", import_module("octavo.client.messaging.api.arrow").FUNCTIONS)
