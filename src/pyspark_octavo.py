"""Makes `format("octavo")` known to Spark without registration.

Spark looks for top-level modules called `pyspark_*` and registers their `DefaultSource`.
"""

from __future__ import annotations

from octavo.spark.source import OctavoSource as DefaultSource

__all__ = ["DefaultSource"]
