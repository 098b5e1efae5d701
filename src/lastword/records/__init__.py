"""Stores and reads answered items: records, Parquet parts, runs, cells and data frames."""
