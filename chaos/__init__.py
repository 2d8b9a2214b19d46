"""Faults for tests: what breaks a running cluster on purpose, and the proof that it did.

Importable in a checkout as `octavo.chaos`; never shipped, and nothing that ships imports it.
"""

from __future__ import annotations
