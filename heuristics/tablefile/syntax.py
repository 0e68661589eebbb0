"""What a table's code says, whatever a formatter made of it.

In: the code below a table's header. Out: its syntax as text, which is hashed; its lines, which are compared; whether it
has comments.
"""

import ast
import io
import tokenize
import warnings

# Absent or empty on some versions of Python, or said by the spelling alone.
_UNSAID = ("ctx", "kind", "type_comment", "type_ignores")
# What Python's parser raises; nesting too deep for it, or for a walk over the tree, shows as one of the last two.
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


def parsed(code: str) -> ast.Module:
    """The syntax tree of code that may be anybody's, of which Python's parser would quote odd characters on stderr.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: it is no Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


def syntax(code: str) -> str:
    """The syntax tree as text: without comments, positions and quotes, docstrings by their words.

    Written here because `ast.dump` prints other fields on other versions of Python, on which the code of a table reads
    the same. What is no Python is itself.
    """
    try:
        return _plain(parsed(code))
    except UNREADABLE:
        return code


def statements(code: str) -> list[str]:
    """The lines of the code as Python itself would write them, without comments, to be compared."""
    try:
        module = parsed(code)
        for node in ast.walk(module):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                node.value.value = " ".join(node.value.value.split())
        return ast.unparse(module).splitlines()
    except UNREADABLE:
        return code.splitlines()


def has_comments(code: str) -> bool:
    """Whether there is a comment, which `syntax` leaves out; True where the code is no Python."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (*UNREADABLE, tokenize.TokenError):
        return True
    return any(token.type == tokenize.COMMENT for token in tokens)


def _plain(node: object) -> str:
    match node:
        case list():
            return f"[{','.join(map(_plain, node))}]"
        # A statement of text alone is a docstring or has no effect; formatters indent it anew and break its lines.
        case ast.Expr(value=ast.Constant(value=str(text))):
            return f"Words({text.split()!a})"
        case ast.AST():
            fields = sorted((name, value) for name, value in ast.iter_fields(node) if name not in _UNSAID)
            said = (f"{name}={_plain(value)}" for name, value in fields if value is not None and value != [])
            return f"{type(node).__name__}({','.join(said)})"
    return ascii(node)
