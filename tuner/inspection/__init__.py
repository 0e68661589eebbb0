"""Looks at an operator without a GPU: what is wrong with it, and what it launches."""
