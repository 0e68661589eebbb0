"""Evidence of one GPU to a table: its functions, what shares them, their figures, and the module as code."""
