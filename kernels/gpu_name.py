"""Name of a GPU for a line of text, from any driver's name.

In: the driver's name. Out: one line of printable ASCII of bounded length, never empty. Headers and messages all use it,
so that a table finds its GPU.
"""

MAX_LETTERS = 80
UNNAMED = "unnamed GPU"


def plain_name(name: str) -> str:
    """The name in one line of at most `MAX_LETTERS`; `UNNAMED` if nothing is left."""
    return " ".join(plain_letters(name).split())[:MAX_LETTERS].strip() or UNNAMED


def plain_letters(text: str) -> str:
    """A text in one line of printable ASCII: `?` for other letters, a space for unprintable ones."""
    letters = (letter if letter.isprintable() else " " for letter in text)
    return "".join(letter if letter.isascii() else "?" for letter in letters)
