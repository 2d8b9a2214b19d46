"""Consumer groups on their coordinator: targets, members, committed offsets (spec group-protocol).

Pure cores; the shell that follows the partitions of `__consumer_offsets` stands around them.
"""
