"""Log compaction: of each key only its last record stays (spec groups §9)."""
