"""Benchmarks: ours beside the machine's own limits, measured in the same run, judged by ratios."""
