"""Exported trees: closed ledgers as Arrow or Parquet files that a manifest names (DESIGN.md here).

Below brokers and Spark, which both read these files; above nothing but stored segments' values.
Import the modules: this package itself loads nothing.
"""
