"""Parts that Triton kernels over rows share, and how a config becomes their launch."""
