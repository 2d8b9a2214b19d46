"""`make demo`.

The main job on real data, with processes killed in mid-stream, proven from the data.
"""
