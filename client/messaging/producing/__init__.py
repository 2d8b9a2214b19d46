"""A record's way out: intake, accumulator, the sender's core and its shell, one stream per broker.

The doors (`api`, `sync`) import it; it knows `cluster` and the values at the root, never `reading`.
"""
