"""Evidence of one GPU to a table: its functions, shared functions, figures, and the module as code."""
