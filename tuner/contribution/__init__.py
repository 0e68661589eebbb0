"""Data, table, page and text about one GPU, for a pull request."""
