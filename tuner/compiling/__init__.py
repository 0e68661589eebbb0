"""Compilation for a GPU that may be absent: a pool of processes, binaries in folders, digests of code."""
