"""Public home of the exception tree: `octavo.errors.OctavoError` and everything below it."""

from __future__ import annotations

from octavo.runtime.errors import *  # noqa: F403
from octavo.runtime.errors_of_groups import *  # noqa: F403
from octavo.runtime.errors_of_writers import *  # noqa: F403
