"""Fixtures: cluster."""
