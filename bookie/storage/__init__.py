"""What is built from the journal: the RocksDB index and reads from segments (spec/ledger.md §6.5,
§6.7)."""
