"""The gate, the timing protocol, and the tuner's own kernels and memory."""
