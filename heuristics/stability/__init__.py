"""Stability of a table: its expected change if the GPU were measured again."""
