"""Reading stored segments: entries, batches, offsets and footers (DESIGN.md of client/segments).

Below brokers and Spark, which both read this way; above the ledger client. Import the modules:
this package itself loads nothing, so that readers of exported files load no client.
"""
