"""Fixtures live in fix_*.py, one topic per file; this lists them."""

from __future__ import annotations

pytest_plugins = ["tests.fix_zookeeper", "tests.fix_cluster", "tests.fix_spark"]
