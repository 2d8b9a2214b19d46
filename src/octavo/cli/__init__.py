"""The `octavo` command, one module per group of commands."""
