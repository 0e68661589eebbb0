"""Generated blocks of a document: everything between `<!-- KIND: NAME -->` and `<!-- end -->`.

In: a text and the lines of each block. Out: the text with its blocks filled in, or a message that names the document
that is out of date. The text around a block is written by hand.
"""

import argparse
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
Blocks = Mapping[str, Callable[[], Iterable[str]]]


def filled(text: str, kind: str, blocks: Blocks) -> str:
    """Fill in the blocks of a kind.

    Args:
        text: of the document.
        kind: the word before the name in the opening comment.
        blocks: the lines of each block, by name.

    Raises:
        SystemExit: the text names a block that is not in `blocks`, or lacks one that is.
    """
    pattern = re.compile(rf"(<!-- {kind}: ([\w ]+) -->\n).*?(<!-- end -->\n)", re.DOTALL)
    names = [match[2] for match in pattern.finditer(text)]
    if sorted(names) != sorted(blocks):
        raise SystemExit(f"the text has the blocks {', '.join(names)}: expected each of {', '.join(blocks)}, once")
    return pattern.sub(lambda match: match[1] + "".join(f"{line}\n" for line in blocks[match[2]]()) + match[3], text)


def main(description: str, command: str, kind: str, documents: Mapping[Path, Blocks]) -> None:
    """Write the blocks of documents, or with `--check` compare them with the documents.

    Args:
        description: of the script, for its `--help`.
        command: that writes the documents, for the message.
        kind: of the blocks.
        documents: the blocks of each document.

    Raises:
        SystemExit: with `--check`, a document is out of date.
    """
    from normtune.results.atomic import replaced

    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if a document is out of date")
    options = parser.parse_args()
    for path, blocks in documents.items():
        text = path.read_text("utf-8")
        new = filled(text, kind, blocks)
        if new == text:
            continue
        if options.check:
            raise SystemExit(f"{path.name} is out of date: run `{command}`")
        with replaced(path) as temporary:
            temporary.write_text(new, "utf-8")
