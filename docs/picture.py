"""Draw the picture of README.md: the terminal output of a short sweep and a fit.

    python docs/picture.py [--device cuda:0]

Runs both commands in a pseudo-terminal with an empty store, keeps the last screen of each, and writes these with Rich
to docs/quick.svg. Needs normtune on the path; without a GPU, `--device replay:nvidia-h200`.
"""

import argparse
import html
import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

WIDTH, HEIGHT = 110, 50
OUT = Path(__file__).parent / "quick.svg"


def main() -> None:
    """Run both commands and draw their output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    is_gpu = options.device == "cuda:0"
    sweep = ["sweep", *(("--effort", "quick") if is_gpu else ("--device", options.device))]
    with tempfile.TemporaryDirectory() as folder:
        shown = [(command, on_screen(command, folder)) for command in (sweep, ["fit"])]
    draw(shown)
    print(f"wrote {OUT}")


def on_screen(command: list[str], folder: str) -> str:
    """The last screen of a command in a terminal.

    Raises:
        SystemExit: the command fails.
    """
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(WIDTH), "LINES": str(HEIGHT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "normtune", *command],
        stdin=child,
        stdout=child,
        stderr=child,
        cwd=folder,
        env=environment,
    )
    os.close(child)
    received = io.BytesIO()
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:  # EIO on Linux: the other end is closed
            break
        if not piece:
            break
        received.write(piece)
    os.close(parent)
    text = received.getvalue().decode()
    if process.wait():
        raise SystemExit(f"normtune {' '.join(command)} failed:\n{text}")
    return last_screen(text)


def last_screen(text: str) -> str:
    """The lines that stay on the screen, without those that a live display has overwritten."""
    lines: list[str] = [""]
    row = 0
    for part in re.split(r"(\n|\x1b\[\d*A|\x1b\[2K|\r)", text.replace("\r\n", "\n")):
        if part == "\n":
            row += 1
            if row == len(lines):
                lines.append("")
        elif part == "\x1b[2K":
            lines[row] = ""
        elif re.fullmatch(r"\x1b\[\d*A", part):
            row -= int(part[2:-1] or 1)
        elif part != "\r":
            lines[row] += part
    return "\n".join(re.sub(r"\x1b\[\?25[lh]", "", line) for line in lines).rstrip()


def draw(shown: list[tuple[list[str], str]]) -> None:
    """Write the commands and their output as a picture."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    for command, text in shown:
        console.print(Text.assemble(("$ ", "green"), (f"normtune {' '.join(command)}", "bold")))
        console.print(Text.from_ansi(text))
    drawn = console.export_svg(title="normtune", unique_id="quick")
    # Rich's fonts are not on every machine, and some renderers try no second font.
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    drawn = drawn.replace("Fira Code, monospace", "monospace").replace("font-family: arial", "font-family: sans-serif")
    OUT.write_text(without_blanks(drawn), "utf-8")


def without_blanks(drawn: str) -> str:
    """A picture of Rich's with a separate text element for each word.

    Renderers differ in the blanks that they keep, no-break spaces included, and in support of `textLength`; so columns
    line up everywhere only if no text has a blank.
    """
    drawn = re.sub(r'<clipPath id="quick-line-.*?</clipPath>\n?', "", drawn, flags=re.DOTALL)
    runs = r'<text class="(quick-r\d+)" x="([\d.]+)" y="([\d.]+)" textLength="([\d.]+)"[^>]*>([^<]*)</text>'
    return re.sub(runs, _words, drawn)


def _words(run: re.Match[str]) -> str:
    """The text elements of the words of a run of text."""
    style, left, top, width, escaped = run.groups()
    text = html.unescape(escaped).replace("\N{NO-BREAK SPACE}", " ").rstrip("\n")
    column = float(width) / max(1, len(text))
    return "".join(
        f'<text class="{style}" x="{float(left) + word.start() * column:.1f}" y="{top}">{html.escape(word[0])}</text>'
        for word in re.finditer(r"\S+", text)
    )


if __name__ == "__main__":
    main()
