"""Compilation for a GPU that may be absent: a pool of processes and binaries in folders."""
