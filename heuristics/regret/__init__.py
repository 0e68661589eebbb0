"""Stored samples to timing matrices: what each config loses on each problem, and what the problems count."""
