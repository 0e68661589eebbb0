"""Two tables, or a table and the rule of another library: where they differ and what that costs."""
