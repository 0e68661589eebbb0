"""Random damage to all files of unknown origin: the only effect is a line that reports it.

Each property is tried 140 times in `make test`, and 10,000 times in `make test-all`. No example may hang: the 30 s that
it gets are over a hundred times what it takes.
"""

import json
import re
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import Result

from normtune.errors import NormtuneError
from normtune.heuristics.fitting import pipeline
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.writing.emit import module_text
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.header import body_hash, parse
from normtune.results.evidence import Evidence
from normtune.results.exchange.parquet_csv import read_parquet, write_parquet
from normtune.results.records import TimedCode
from normtune.results.terminal import say
from normtune.tests.commands import invoke
from normtune.tests.heuristics.made_up import as_command
from normtune.tests.results.stores import merge
from normtune.tuner.checking import subject

SHAPES = [(rows, hidden) for rows in (1, 4096) for hidden in (64, 4096)]
# Seconds of the CPU that an example may take.
LIMIT = 30.0
PIECES = [
    *(
        "",
        " ",
        "\n",
        "\r",
        "\t",
        "\0",
        "\\",
        "'",
        '"',
        "$'\\x1b'",
        "\x1b[2J",
        "\x1b]0;x\x07",
        "\x9b",
        "\u202e",
        "\ufeff",
    ),
    *("é", "٣", "²", "\ud7ff", "0", "-1", "1.5", "nan", "inf", "1e400", "9" * 5000, str(2**31), str(2**63), "0x1F"),
    *("../../etc/passwd", "/dev/zero", "/dev/stdin", "~", "a/" * 3000, "--leaves", "--weights /etc/shadow", "--faster"),
    *("(" * 300, "-" * 3000, "[]", "{}", "null", "true", '"\\d"', "'\\\x1b'", "1 is 1", "# x: y"),
    *(
        "import os\n",
        "print(1)",
        "return ",
        "if rows >= 1:\n",
        "    ",
        ", ",
        ":",
        "=",
        "%",
        " %",
        "SMs",
        "sm_",
        "leaves",
    ),
]
TEXT = st.sampled_from(PIECES) | st.text(max_size=20)


@contextmanager
def limited() -> Iterator[None]:
    """Ends what is in the block with an error where it hangs, in a regular expression too: by the time of the CPU."""

    def end(*arguments: object) -> None:
        raise AssertionError(f"it takes over {LIMIT:g} seconds")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def tried(values: st.SearchStrategy[Any], holds: Callable[[Any], str], examples: int = 2_000) -> Counter[str]:
    """Try a property so many times, in `make test-all` of other values each time; what came of them, counted."""
    found: Counter[str] = Counter()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(values)
    def example(value: Any) -> None:
        before = sorted(Path().rglob("*"))
        with warnings.catch_warnings(record=True) as warned, limited():
            warnings.simplefilter("always")
            found[holds(value)] += 1
        assert not warned, warned[0].message
        assert sorted(Path().rglob("*")) == before

    example()
    print(dict(found))
    return found


def damaged(text: str) -> st.SearchStrategy[str]:
    """The text with some pieces of it replaced."""
    edits = st.lists(
        st.tuples(st.integers(0, len(text)), st.sampled_from([0, 0, 1, 2, 5, 40]), TEXT), min_size=1, max_size=4
    )

    def apply(found: list[tuple[int, int, str]]) -> str:
        now = text
        for at, length, piece in found:
            now = now[:at] + piece + now[at + length :]
        return now

    return edits.map(apply)


def relined(text: str) -> st.SearchStrategy[str]:
    """The text with the value of some of its lines of facts replaced, or a line twice or gone."""
    lines = text.split("\n")
    places = [place for place, line in enumerate(lines) if re.match('# "', line)]
    edits = st.lists(
        st.tuples(st.sampled_from(places), st.integers(0, 40), st.lists(TEXT, max_size=3)), min_size=1, max_size=3
    )

    def apply(found: list[tuple[int, int, list[str]]]) -> str:
        now = list(lines)
        for place, kept, pieces in found:
            begin, _, value = lines[place].partition(": ")
            now[place] = f"{begin}: {value[: len(value) * kept // 40]}{''.join(pieces)}" if pieces else ""
        return "\n".join(now)

    return edits.map(apply)


def plain(text: str) -> None:
    assert all(line.isprintable() for line in text.split("\n")), repr(text)[:500]


def checked(*arguments: str) -> Result:
    """What `check` says: nothing else than lines, and no other error than those that are meant."""
    done = invoke("check", *arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit | NormtuneError), repr(done.exception)
    plain(done.output)
    assert len(done.output) < 100_000
    if isinstance(done.exception, NormtuneError):
        assert "\n" not in str(done.exception)
        assert len(str(done.exception)) < 10_000
    return done


@pytest.fixture
def measured(measure, penalty, run, spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_as) -> Evidence:
    """Measurements of `toy` as a recording, in a folder without files; nothing is fitted again."""
    monkeypatch.chdir(tmp_path)
    items = measure(penalty, SHAPES, fingerprint=fingerprint(spec))
    coded = [item._replace(code=TimedCode(b"launch", b"code")) for item in items]
    return record_as(Evidence.from_measurements(coded, [run]))


@pytest.fixture
def table(measured: Evidence, monkeypatch: pytest.MonkeyPatch) -> str:
    """The text of a table of `measured`."""
    command = "normtune fit --store test-gpu --leaves 4 --out table.py"
    text = module_text(fit(measured, FitOptions(leaves=4)), as_command(command))

    def refuse(*arguments: object, **others: object) -> None:
        raise NormtuneError("not fitted here")

    monkeypatch.setattr(pipeline, "fit", refuse)
    Path("table.py").write_text(text)
    return text


@pytest.mark.slow
def test_damaged_headers(table: str) -> None:
    _, body = parse(table, "table.py")
    top, _, facts = table.partition(body)

    def holds(texts: tuple[str, str]) -> str:
        text = body.join(texts)
        Path("table.py").write_text(text, encoding="utf-8", errors="replace", newline="")
        return "judged" if "table.py: " in checked("table.py").output else "refused"

    tops, ends = damaged(top) | st.just(top), damaged(facts) | relined(facts) | st.just(facts)
    assert set(tried(st.tuples(tops, ends), holds)) == {"judged", "refused"}


# What an expression over a line may begin with, or wait for, over and over again.
REPEATED = st.lists(
    st.sampled_from(
        [
            *(
                "9",
                "1.",
                "-",
                ".",
                " ",
                ", ",
                "a",
                "a b: ",
                "x, x, 1 SMs",
                "1 measurements",
                "rows 1 to 2, hidden 3 to 4",
            ),
            *("toy bfloat16: 2 leaves, ", "cross-validated 1.0 %", "plain cross-validated 1 % ", "extrapolated 1 % "),
            *(
                "1 shapes up to ",
                "1 % slower",
                "worst 1 %",
                " mean 2 %",
                "as toy bfloat16, ",
                "'",
                '"',
                "\\\\x41",
                "$'",
            ),
            *("--leaves ", "--weights a ", "sha256:", "=1.", ": ", "# "),
        ]
    ),
    min_size=1,
    max_size=3,
).map("".join)


def endless(text: str) -> st.SearchStrategy[str]:
    """The text with the value of a line of facts, or that line, many times; or with lines to go on for ever."""
    lines = text.split("\n")
    places = [place for place, line in enumerate(lines) if re.match('# "', line)]

    def apply(found: tuple[int, str, str, int, str]) -> str:
        place, start, piece, size, end = found
        begin, _, value = lines[place].partition(": ")
        head = {"value": f"{begin}: {value} {piece * (size // len(piece))}{end}"}
        head["lines"] = "\n".join([f"{begin}: {piece}{end}"] * (size // 40))
        head["wrapped"] = "\n".join([lines[place], *[f"#   {piece}"] * (size // 40)])
        head["alone"] = f"{begin}: {piece * (size // len(piece))}{end}"
        return "\n".join([*lines[:place], head[start], *lines[place + 1 :]])

    starts = st.sampled_from(["value", "alone", "lines", "wrapped"])
    sizes = st.sampled_from([5_000, 60_000, 900_000])
    return st.tuples(st.sampled_from(places), starts, REPEATED, sizes, REPEATED).map(apply)


@pytest.mark.slow
def test_endless_headers(table: str) -> None:
    _, body = parse(table, "table.py")
    top, _, facts = table.partition(body)

    def holds(text: str) -> str:
        Path("table.py").write_text(f"{top}{body}{text}", encoding="utf-8", errors="replace", newline="")
        checked("table.py")
        try:
            subject.read(Path("table.py"))
            return "loaded"
        except NormtuneError as error:
            assert "\n" not in str(error)
            return "refused"

    assert "refused" in tried(endless(facts), holds, 400)


@pytest.mark.slow
@pytest.mark.parametrize("digits", [60_000, 900_000])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r'"measurements": \d+', '"measurements": {}'),
        ('"2026-11-20"', '"{}"'),
        (r'"leaves": \d+', '"leaves": {}'),
        (r'"key": \["toy", "bfloat16"\]', '"key": ["toy", "{}"]'),
        ('"label": "Test GPU"', '"label": "{}"'),
        ("Test GPU, sm_90", "{}, sm_90"),
    ],
)
def test_facts_of_digits_are_read_or_refused_at_once(table: str, old: str, new: str, digits: int) -> None:
    unwrapped = table.replace("\n#   ", " ")
    text, count = re.subn(old, new.format("9" * digits), unwrapped, count=1)
    assert count == 1
    Path("table.py").write_text(text)
    with limited():
        checked("table.py")
        with suppress(NormtuneError):
            locate.load("table.py")
        with suppress(NormtuneError):
            subject.read(Path("table.py"))


@pytest.mark.slow
def test_damaged_bodies(table: str, capfd: pytest.CaptureFixture[str]) -> None:
    header, body = parse(table, "table.py")
    top, _, facts = table.partition(body)

    def holds(body: str) -> str:
        body = body.encode("utf-8", "replace").decode()
        text = f"{top}{body}{facts.replace(header.body, body_hash(body))}"
        Path("table.py").write_text(text, encoding="utf-8", newline="")
        checked("--quick", "table.py")
        try:
            locate.load("table.py")
            return "loaded"
        except NormtuneError as error:
            assert "\n" not in str(error)
            return "refused"

    assert set(tried(damaged(body), holds)) == {"loaded", "refused"}
    told = capfd.readouterr()
    assert told.err == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


def altered(value: Any) -> st.SearchStrategy[Any]:
    """A JSON value of which one or two parts are others."""
    places: list[tuple[Any, ...]] = []

    def walk(part: Any, path: tuple[Any, ...]) -> None:
        places.append(path)
        for key, inner in part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ():
            walk(inner, (*path, key))

    walk(value, ())

    def put(found: list[tuple[tuple[Any, ...], Any]]) -> Any:
        now = json.loads(json.dumps(value))
        for path, new in found:
            if not path:
                return new
            part = now
            try:
                for key in path[:-1]:
                    part = part[key]
                part[path[-1]] = new
            except (KeyError, IndexError, TypeError):  # another edit took it away
                continue
        return now

    return st.lists(st.tuples(st.sampled_from(places), JSON), min_size=1, max_size=2).map(put)


@pytest.mark.slow
def test_damaged_parquet(measured: Evidence, tmp_path_factory: pytest.TempPathFactory) -> None:
    write_parquet(measured, Path("data.parquet"))
    whole = pq.read_table("data.parquet").slice(0, 3)
    head = json.loads(whole.schema.metadata[b"normtune"])
    head["runs"][0]["protocol"] = {"regime": "cold", "void_rounds": 0}
    text = json.dumps(head)
    cells = [("operator", TEXT), ("variant", TEXT), ("dtype", TEXT), ("config", TEXT), ("fingerprint", TEXT)]
    cells += [("status", TEXT), ("reason", TEXT), ("run", TEXT), ("launch", TEXT), ("assembly", TEXT)]
    columns = st.none() | st.sampled_from(cells).flatmap(lambda cell: st.tuples(st.just(cell[0]), cell[1]))
    heads = damaged(text) | altered(head).map(json.dumps)
    outside = tmp_path_factory.mktemp("store")

    def holds(value: tuple[str, tuple[str, str] | None]) -> str:
        text, column = value
        made = whole
        if column:
            at = made.column_names.index(column[0])
            cells = [column[1].encode("utf-8", "replace").decode(), *made.column(at).to_pylist()[1:]]
            # Of digests every second damage keeps the type.
            kind = pa.binary() if column[0] in ("launch", "assembly") and len(column[1]) % 2 else pa.string()
            made = made.set_column(at, column[0], pa.array(cells, pa.string()).cast(kind))
        made = made.replace_schema_metadata({b"normtune": text.encode("utf-8", "replace")})
        pq.write_table(made, "data.parquet")
        try:
            found = read_parquet(Path("data.parquet"))
        except NormtuneError as error:
            assert "\n" not in str(error)
            assert len(str(error)) < 1000
            return "refused"
        store = outside / "store.db"
        store.unlink(missing_ok=True)
        merge(f"sqlite:///{store}", found)
        done = invoke("data", "list", "--store", store)
        assert done.exception is None or isinstance(done.exception, NormtuneError), repr(done.exception)
        plain(done.output)
        with suppress(NormtuneError):
            assert module_text(fit(found, FitOptions(leaves=2)), as_command("normtune fit")).isascii()
            return "fitted"
        return "listed"

    assert {"fitted", "refused"} <= set(tried(st.tuples(heads, columns), holds))


CSV = "rows,hidden,weight,operator,dtype\n1,64,2.5,toy,bfloat16\n4096,4096,1,,\n"


@pytest.mark.slow
def test_damaged_csv(measured: Evidence, capsys: pytest.CaptureFixture[str]) -> None:
    Path("weights.csv").write_text(CSV)

    def holds(content: str | bytes) -> str:
        raw = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
        Path("weights.csv").write_bytes(raw)
        try:
            fit(measured, FitOptions(leaves=1, weights="weights.csv"))
            return "fitted"
        except NormtuneError as error:
            say(str(error), error=True)
            told = capsys.readouterr().err
            plain(told)
            assert told.count("\n") == 1
            assert len(told) < 1000
            return "refused"

    assert set(tried(damaged(CSV) | st.binary(max_size=200), holds)) == {"fitted", "refused"}
