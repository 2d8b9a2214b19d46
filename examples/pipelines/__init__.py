"""Pipelines of Spark over topics (see README.md)."""
