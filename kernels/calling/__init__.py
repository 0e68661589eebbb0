"""Calls on a user's tensors: the table of their GPU, the config, and the kept launch."""
