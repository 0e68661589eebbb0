"""Triton RMSNorm kernels, what they say about themselves, and the dispatch that launches them."""
