"""Searches: choice of the configs of a problem to measure, and their number of rounds."""
