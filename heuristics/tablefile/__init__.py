"""Emitted tables as files: their trees, headers and code, and which one serves a GPU. Standard library only."""
