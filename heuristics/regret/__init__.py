"""Stored samples to timing matrices: the regret of each config on each problem, and the problems' weights."""
