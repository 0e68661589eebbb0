"""Timing matrices to proved threshold trees: bins, the dynamic program, candidates, the number of leaves."""
