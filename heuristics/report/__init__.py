"""A page and pictures of what was measured and what a table chooses."""
