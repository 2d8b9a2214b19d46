"""Brokers, their channels, topics' metadata and owners: who to ask, and how long to wait for it.

Knows the values at the root only."""
