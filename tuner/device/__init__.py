"""A device as a sweep sees it: the process that drives it, compiling for it, and a recording in its place."""
