"""Copies heal by themselves: an auditor that looks, workers that copy (spec/ledger.md §7)."""
