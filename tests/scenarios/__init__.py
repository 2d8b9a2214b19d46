"""Tests: see docs/HACKING.md for the map."""
