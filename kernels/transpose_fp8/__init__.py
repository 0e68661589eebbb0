"""Transposition of FP8 matrices, as an operator and as the last launch of quantizing operators."""
