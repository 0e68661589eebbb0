"""Triton RMSNorm kernels, their operator specs, and the dispatch that launches them."""
