"""The coordinator of groups, as a broker runs it: its topic, its partitions, its time, its threads.

Every decision is made in `serving.groups`, without I/O. Here its events are found and its actions
carried out: records are appended and read, targets computed, answers proved and sent.
"""
