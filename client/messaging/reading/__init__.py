"""A record's way in: what to fetch, from whom and from where, and what is handed out.

The doors (`api`, `sync`) import it; it knows `cluster` and the values at the root, never
`producing`.
"""
