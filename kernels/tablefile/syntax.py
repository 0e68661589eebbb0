"""A table's code independent of its formatting.

In: the code below a table's header. Out: its syntax as text for a hash; its lines for a comparison; whether it has
comments.
"""

import ast
import io
import tokenize
import warnings

# Fields that are absent or empty on some versions of Python, or depend only on spelling.
_UNSAID = ("ctx", "kind", "type_comment", "type_ignores")
# Raised by Python's parser; the last two for nesting too deep for it, or for a walk over the tree.
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


def parsed(code: str | bytes) -> ast.Module:
    """Parse untrusted code without warnings of Python's parser, which would quote the code on stderr.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: it is not Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


def syntax(code: str) -> str:
    """The syntax tree as text: without comments, positions and quotes; docstrings as their words.

    Unlike `ast.dump`, whose fields differ between versions of Python, the text is the same on all. Text that is not
    Python is returned unchanged.
    """
    try:
        return _text(parsed(code))
    except UNREADABLE:
        return code


def statements(code: str) -> list[str]:
    """The code as lines of `ast.unparse`, without comments."""
    try:
        module = parsed(code)
        for node in ast.walk(module):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text)) as words):
                    words.value = " ".join(text.split())
        return ast.unparse(module).splitlines()
    except UNREADABLE:
        return code.splitlines()


def has_comments(code: str) -> bool:
    """Whether there is a comment, which `syntax` omits; True if the code is not Python."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (*UNREADABLE, tokenize.TokenError):
        return True
    return any(token.type == tokenize.COMMENT for token in tokens)


def _text(node: object) -> str:
    match node:
        case list():
            return f"[{','.join(map(_text, node))}]"
        # A bare string is a docstring or has no effect; formatters reindent it and break its lines.
        case ast.Expr(value=ast.Constant(value=str(text))):
            return f"Words({text.split()!a})"
        case ast.AST():
            fields = sorted((name, value) for name, value in ast.iter_fields(node) if name not in _UNSAID)
            said = (f"{name}={_text(value)}" for name, value in fields if value is not None and value != [])
            return f"{type(node).__name__}({','.join(said)})"
    return ascii(node)
