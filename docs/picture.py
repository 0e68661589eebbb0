"""Draw the picture of README.md: what a quick sweep and the fit after it print in a terminal.

    python docs/picture.py [--device cuda:0]

Runs both commands in a terminal of their own and an empty store, keeps what stays on the screen, and writes it with
Rich to docs/quick.svg. Needs normtune on the path; without a GPU, `--device replay:nvidia-h200`.
"""

import argparse
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
    """Run, record, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    sweep = ["sweep", "--effort", "quick"]
    if options.device != "cuda:0":
        sweep += ["--device", options.device]
    with tempfile.TemporaryDirectory() as folder:
        shown = [(command, on_screen(command, folder)) for command in (sweep, ["fit"])]
    draw(shown)
    print(f"wrote {OUT}")


def on_screen(command: list[str], folder: str) -> str:
    """What a command leaves on the screen of a terminal; ends where the command fails."""
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
        except OSError:  # Linux says so when the other end is closed
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
    """The lines that are left once every display that was redrawn is gone."""
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
    """Write the commands and what they left as a picture."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    for command, text in shown:
        console.print(Text.assemble(("$ ", "green"), (f"normtune {' '.join(command)}", "bold")))
        console.print(Text.from_ansi(text))
    # The fonts that Rich names are fetched from elsewhere; without them it is drawn in the reader's own monospace.
    drawn = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="normtune", unique_id="quick"), flags=re.DOTALL)
    OUT.write_text(drawn, "utf-8")


if __name__ == "__main__":
    main()
