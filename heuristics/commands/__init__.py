"""The commands `fit`, `check`, `show` and `diff`."""
