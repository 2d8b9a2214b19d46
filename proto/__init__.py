"""Protobuf files, the pure codecs (batch, entry, bookie frames) and the error table."""
