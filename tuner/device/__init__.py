"""Devices: the process that drives a GPU, compiling for it, and replay of a recording."""
