"""What to call a GPU in a line of text, whatever its driver calls it.

In: the driver's name. Out: one printable line of bounded length, never empty. Headers and messages all use it, so that
a table finds the GPU it was made for.
"""

MAX_LETTERS = 80
UNNAMED = "unnamed GPU"


def plain_name(name: str) -> str:
    """The name in one line of printable characters, at most `MAX_LETTERS` of them; `UNNAMED` where nothing is left."""
    words = "".join(letter if letter.isprintable() else " " for letter in name).split()
    return " ".join(words)[:MAX_LETTERS].strip() or UNNAMED
