"""Comparison of two tables, or of a table and the rule of another library: differences and their cost."""
