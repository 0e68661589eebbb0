"""Committed tables, one generated module a GPU."""
