"""The one-command cluster: metadata, bookies and brokers as child processes."""
