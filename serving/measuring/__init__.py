"""What a broker tells of itself."""
