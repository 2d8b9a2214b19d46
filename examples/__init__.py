"""Programs to read, run and copy; nothing of Octavo imports them."""
