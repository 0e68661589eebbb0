"""Devices: the process that drives a GPU, replay of a recording, and the identity of timings."""
