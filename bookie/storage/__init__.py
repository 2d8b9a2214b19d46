"""What is built from the journal: the RocksDB index and reads from segments (ledger §6.5, §6.7)."""
