"""The append stream of a bookie: segment format, group commit, replay (ledger §6.2-§6.4, §6.8)."""
