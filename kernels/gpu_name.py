"""What to call a GPU in a line of text, whatever its driver calls it.

In: the driver's name. Out: one line of printable ASCII of bounded length, never empty. Headers and messages all use it,
so that a table finds the GPU it was made for.
"""

MAX_LETTERS = 80
UNNAMED = "unnamed GPU"


def plain_name(name: str) -> str:
    """The name in one line of at most `MAX_LETTERS`; `UNNAMED` where nothing is left."""
    return " ".join(plain_letters(name).split())[:MAX_LETTERS].strip() or UNNAMED


def plain_letters(text: str) -> str:
    """A text in one line of printable ASCII: `?` for other letters, a space for what cannot be printed."""
    letters = (letter if letter.isprintable() else " " for letter in text)
    return "".join(letter if letter.isascii() else "?" for letter in letters)
