"""Correct, then timed: the gate, the timing protocol and the kernels and memory of the tuner's own."""
