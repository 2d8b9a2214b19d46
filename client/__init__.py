"""Clients of the servers: `ledger` speaks to bookies, `messaging` to brokers."""
