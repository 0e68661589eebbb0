"""Code shared by Triton kernels over rows: tiles, partial sums, and launches resolved from configs."""
