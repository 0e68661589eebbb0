"""The transposition of FP8 matrices, on its own and behind kernels that quantize."""
