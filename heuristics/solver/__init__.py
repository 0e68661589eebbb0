"""Timing matrices to proved threshold trees: bins, dynamic program, candidates, number of leaves."""
