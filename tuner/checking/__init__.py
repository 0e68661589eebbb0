"""Checks of a table against its data, its kernels and, by measuring, the GPU."""
