"""A table that normtune shipped in format 3 is read for ever: looked up, kept as a baseline, and judged."""

from pathlib import Path

from normtune.heuristics.writing.entries import decisions
from normtune.heuristics.writing.regenerate import command_of, is_plain
from normtune.kernels.box import Box
from normtune.kernels.key import Key
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.header import Data, Gpu, is_edited, parse
from normtune.kernels.tablefile.parse import trees
from normtune.kernels.tablefile.tree import leaves
from normtune.tuner.checking.offline import check

TABLE = Path(__file__).parent / "format_3_table.txt"


def test_its_header_says_what_it_said() -> None:
    header, body = parse(TABLE.read_text(), "table")
    assert (header.format, header.has_facts, is_edited(header, body)) == (3, False, False)
    assert header.device == Gpu("NVIDIA H200", "sm_90", 132)
    digest = "sha256:19f2999a6074b51ed917ca726e21d8491d6624db3301df057b5fb7f25e96278c"
    assert header.data == Data(digest, 2215, "2026-11-23")
    assert header.software == {"triton": "3.6.0", "torch": "2.11.0+cu130"}
    assert header.box == Box.of(rows=(16, 65536), hidden=(256, 16384))
    assert list(header.kernels) == ["reduce_partials"]
    command = command_of(header)
    assert is_plain(header)
    assert (command.recording, command.options) == ("nvidia-h200-reduce-partials", {"leaves": 40})
    assert command.out == "nvidia_h200_reduce_partials.py"
    ((entry, decided),) = decisions(header).items()
    assert entry == Key.parse("reduce_partials", "bfloat16")
    assert (decided.figures.leaves, decided.figures.asked, decided.figures.configs) == (9, 30, 7)


def test_its_functions_answer(tmp_path: Path) -> None:
    path = tmp_path / "table.py"
    path.write_text(TABLE.read_text())
    found = trees(TABLE.read_text())
    assert {key.dtype for key in found} == {"bfloat16", "float16", "float32"}
    assert {leaves(tree) for tree in found.values()} == {9}
    assert tuple(locate.load(path).lookup("reduce_partials", "bfloat16", 528, 4096))
    assert check(path, quick=True).failures == ()
