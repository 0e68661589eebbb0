"""Measurements at rest: the store, recordings, import and export, statistics of samples."""
