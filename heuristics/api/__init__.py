"""The functions of this room for Python; the commands print what they return."""
