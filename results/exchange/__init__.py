"""Measurements to and from files, recordings, and data frames of others."""
