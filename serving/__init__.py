"""The broker: owns partitions, gives records offsets, keeps nothing (see DESIGN.md)."""
