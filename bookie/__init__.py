"""The storage node: journal, index, fences and reads of one bookie process (see DESIGN.md)."""
