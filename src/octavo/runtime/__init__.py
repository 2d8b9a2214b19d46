"""Foundation below every other layer: errors, clock, entropy, disk, tasks, config, checksums."""
