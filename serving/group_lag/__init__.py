"""How far the groups that this broker coordinates are behind, for its page of metrics (M4, ADR 56).

A pass asks the coordinator where its groups go on (`rounds`), each owner once where the logs begin
and end (`ends` answers that), and makes rows of it (`core`, `rows`: pure). A scrape reads rows.
"""
