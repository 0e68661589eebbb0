"""Devices: the process that drives a GPU, compilation for it, and replay of a recording."""
