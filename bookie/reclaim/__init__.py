"""Space returns: ledgers that are gone are deleted (6.14), segments emptied and removed (6.9)."""
