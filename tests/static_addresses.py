"""A fixed address book, for pools of tests."""

from __future__ import annotations

from collections.abc import Mapping


class StaticAddresses:
    """Knows where some bookies are."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = dict(addresses)

    def address_of(self, bookie_id: str) -> str | None:
        """The address given at the start."""
        return self._addresses.get(bookie_id)
