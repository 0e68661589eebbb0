"""State of a machine, for users and bug reports."""
