"""Fixtures: zookeeper."""
