"""The fingerprint changes with everything that can change time, and with nothing else."""

import pytest

from normtune.kernels.fingerprint import changed, fingerprint, source_fingerprint
from normtune.kernels.operator import operators
from normtune.tests.commands import printed_by

PLAIN = "import x\n@x.jit\ndef kernel(a, BLOCK: tl.constexpr):\n    return a + 1\n"


@pytest.mark.parametrize(
    "other",
    [
        '"""What it does."""\n' + PLAIN,
        PLAIN.replace("return", "# why\n    return"),
        PLAIN.replace("    return", '    """Docs."""\n    return'),
        PLAIN.replace("(a,", "(a: int,").replace("):", ") -> int:"),
        PLAIN.replace("a + 1", "(a\n        + 1)"),
        PLAIN + "LIMIT: int\n",
    ],
)
def test_words_do_not_count(other):
    assert source_fingerprint(other) == source_fingerprint(PLAIN)


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.replace("a + 1", "a + 2"),
        PLAIN.replace("BLOCK: tl.constexpr", "BLOCK"),
        PLAIN.replace("kernel", "kernels"),
        PLAIN.replace("@x.jit\n", ""),
        PLAIN + "LIMIT = 3\n",
        PLAIN.replace("a + 1", "a - 1"),
    ],
)
def test_code_counts(other):
    assert source_fingerprint(other) != source_fingerprint(PLAIN)


def test_an_annotated_value_is_that_value():
    assert source_fingerprint("LIMIT: int = 3") == source_fingerprint("LIMIT = 3")


def test_operators_with_other_kernels_than_measured_are_named_and_unknown_ones_are_not():
    known = operators()
    measured = {"rms_norm_forward": "sha256:old", "gone": "sha256:old"}
    assert changed(measured | {"rms_norm_backward": fingerprint(known["rms_norm_backward"])}) == ["rms_norm_forward"]


@pytest.mark.slow
def test_needs_neither_triton_nor_torch_and_is_the_same_everywhere():
    here = {name: fingerprint(spec) for name, spec in operators().items()}
    code = (
        "import sys\n"
        "from normtune.kernels.fingerprint import fingerprint\n"
        "from normtune.kernels.operator import operators\n"
        "print({name: fingerprint(spec) for name, spec in operators().items()})\n"
        "assert not {'torch', 'triton', 'numpy'} & set(sys.modules)\n"
    )
    assert printed_by(code).strip() == str(here)
    assert len(set(here.values())) == len({spec.sources for spec in operators().values()})
