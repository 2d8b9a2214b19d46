"""What tools ask of consumer groups: descriptions, lag, and where a group is to go on."""
