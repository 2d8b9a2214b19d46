"""The append stream of a bookie: segment format, group commit and replay (spec/ledger.md §6.2 to
§6.4, §6.8)."""
