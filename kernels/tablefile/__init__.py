"""Tables as files: trees, headers, code, and the lookup of the table of a GPU. Standard library only."""
