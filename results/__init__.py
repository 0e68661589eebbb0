"""Stored measurements: the store, recordings, import and export, statistics of samples."""
