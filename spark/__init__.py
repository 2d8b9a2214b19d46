"""Arrow export of closed ledgers and the Spark data source (see DESIGN.md)."""
