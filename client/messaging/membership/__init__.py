"""Membership of a consumer group: heartbeats, assignments and committed offsets of one consumer.

`member_core` and `offset_commits` decide (pure); `session` carries out what they want.
"""
