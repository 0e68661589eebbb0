"""Somebody's own Triton kernel as an operator, declared in one file."""
