"""A fit as a Python module: its text, the command that writes it again, its files, what is printed of it."""
