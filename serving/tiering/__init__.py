"""Closed segments as exported files: copied, named by the list, then off the bookies (F088)."""
