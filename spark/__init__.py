"""Arrow export of closed ledgers and the Spark data source (see DESIGN.md)."""

from __future__ import annotations

from octavo.spark.compaction import compact

__all__ = ["compact"]
