"""An operator of three sizes: its members are stored one by one, its table has one function with thresholds on each."""

from typing import Annotated

import numpy as np
import pandas as pd
import pytest

import normtune
from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.api.diff import diff
from normtune.heuristics.writing.emit import body_text
from normtune.kernels.config import Config
from normtune.kernels.custom_op.decorator import kernel_operator
from normtune.kernels.key import Key
from normtune.kernels.operator import IllegalConfigError, operator
from normtune.kernels.tablefile import locate, parse
from normtune.kernels.tablefile.tree import Leaf, Split, choose
from normtune.tests.commands import main, succeed
from normtune.tests.heuristics.made_up import everywhere, module_of

pytestmark = pytest.mark.usefixtures("operators_forgotten")
M, N, K = (1, 16, 256, 4096), (64, 1024, 4096), (32, 512, 8192)


class TileConfig(Config):
    """How a product is launched."""

    BLOCK: Annotated[int, "rows and columns a program."] = 16
    num_warps: int = 4


def best_of(m, n, k):
    """The law of the made-up times: which block is best."""
    if k >= 8192:
        return 64
    return 16 if m <= 16 or n <= 64 else 128


@pytest.fixture
def derived():
    """A size on which tables may have thresholds, too."""
    return ""


@pytest.fixture
def product(derived):
    """The family, whose launches are the configs."""
    kernel_operator(
        config=TileConfig,
        space={"BLOCK": (16, 64, 128), "num_warps": (4,)},
        axes={"m": M, "n": N, "k": K},
        derived=derived,
        buffers={"a": "input m,k", "b": "weight k,n", "c": "output"},
        reference=lambda a, b: a @ b,
        legal=lambda config, problem, target: config.BLOCK < 128 or problem.sizes["k"] <= 2048,
        name="product",
    )(lambda a, b, c, config: None)

    def resolve(config, problem, target, alignment=None):
        if not legal(config, problem):
            raise IllegalConfigError("too long")
        return Launch(config)

    family = operator("product")
    for name in ("product", *(f"product.k={k}" for k in K)):
        object.__setattr__(operator(name), "resolve", resolve)
    return family


class Launch(tuple):
    """A launch that is its config."""

    def __new__(cls, config):
        return super().__new__(cls, config)

    grid = 1
    binary = property(lambda self: tuple(self))
    workspace = 0


def legal(config, problem):
    return config.BLOCK < 128 or problem.sizes["k"] <= 2048


@pytest.fixture
def frame(product):
    """Made-up times of all legal configs at all shapes: the law's best takes 10 us, others up to twice that."""
    rows = []
    for k in K:
        for m in M:
            for n in N:
                for block in (16, 64, 128):
                    if block < 128 or k <= 2048:
                        time = 10_000 if block == best_of(m, n, k) else 15_000 + block
                        rows.append((f"product.k={k}", "float16", m, n, TileConfig(block, 4), time))
    return pd.DataFrame(rows, columns=["operator", "dtype", "rows", "hidden", "config", "nanoseconds"])


def test_one_function_has_thresholds_on_each_size(frame, tmp_path) -> None:
    table = normtune.fit(frame, name="NVIDIA H200", target="sm_90")
    (function,) = table.functions
    assert function.key == Key.of("product", "", "float16") and function.figures.loss.worst == 0
    shapes = [(m, n, k) for m in M for n in N for k in K]
    axes = ("m", "n", "k")
    assert [choose(function.tree, shape, axes).BLOCK for shape in shapes] == [best_of(*shape) for shape in shapes]
    path = tmp_path / "table.py"
    table.save(path, evidence=tmp_path / "times.parquet")
    module: dict = {}
    exec(path.read_text(), module)
    assert all(best_of(*shape) == module["lookup"]("product", "float16", *shape).BLOCK for shape in shapes)
    assert 'def product_float16(m: int, n: int, k: int) -> "Config":' in path.read_text()
    assert module["MEASURED"] == {("product", "float16"): {"m": (1, 4096), "n": (64, 4096), "k": (32, 8192)}}
    assert parse.trees(path.read_text())[function.key] == function.tree
    # A config that is illegal for long sums answers for none, measured or not.
    assert {module["lookup"]("product", "float16", 4096, 4096, k).BLOCK for k in (2049, 5000, 10**6)} <= {16, 64}


def test_a_file_has_the_sizes_under_their_own_names(frame, tmp_path) -> None:
    of_members = normtune.fit(frame, name="NVIDIA H200", target="sm_90", leaves=3)
    config = frame["config"].map(lambda one: one._asdict()).apply(pd.Series)
    plain = pd.concat([frame[["rows", "hidden", "nanoseconds"]], config], axis=1).rename(
        columns={"rows": "m", "hidden": "n"}
    )
    third = frame["operator"].str.partition("=")[2].astype(int)
    gpu = {"name": "NVIDIA H200", "target": "sm_90", "leaves": 3}
    for own, columns in (
        (plain.assign(k=third), {}),
        (plain.assign(depth=third.astype(float)), {"k": "depth"}),
        (plain.assign(k=third).rename(columns={"m": "rows"}), {"hidden": "n"}),
    ):
        table = normtune.fit(own, columns={"operator": "product", "dtype": "float16"} | columns, **gpu)
        assert table.functions[0].tree == of_members.functions[0].tree
    with pytest.raises(UsageError, match=r"has no column k: it has .*; the sizes of product are m, n, k: "):
        normtune.fit(plain, columns={"operator": "product", "dtype": "float16"}, **gpu)
    with pytest.raises(UsageError, match=r"has no column m: it has .*m=NAME says which has that"):
        normtune.fit(plain.drop(columns="m"), columns={"operator": "product", "dtype": "float16"}, **gpu)
    with pytest.raises(UsageError, match="column 'k' has 'long': expected positive whole numbers"):
        normtune.fit(plain.assign(k="long"), columns={"operator": "product", "dtype": "float16"}, **gpu)
    one = normtune.fit(plain[third == 512], columns={"operator": "product", "dtype": "float16", "k": "512"}, **gpu)
    assert best_of(4096, 4096, 512) == choose(one.functions[0].tree, (4096, 4096, 512), ("m", "n", "k")).BLOCK


def test_a_problem_of_a_member_is_looked_up_in_the_function_of_all(frame, tmp_path) -> None:
    path = tmp_path / "table.py"
    normtune.fit(frame, name="NVIDIA H200", target="sm_90").save(path)
    normtune.export_table(path, tmp_path / "lists.py")
    assert (tmp_path / "lists.py").read_text().count("Config({") == 3
    assert "PRODUCT_CONFIGS = [" in (tmp_path / "lists.py").read_text()
    loaded = locate.load(path)
    assert loaded.axes == ("m", "n", "k")
    for k in (*K, 300):
        answer = loaded.function(Key.of(f"product.k={k}", "", "float16"))
        assert answer and answer(4096, 4096).BLOCK == loaded.lookup("product", "float16", 4096, 4096, k).BLOCK
    output = succeed("lookup", path, "product", "float16", "m=4096", "n=4096", "k=512")
    assert output.startswith("BLOCK=128")


def test_check_fits_again_and_finds_an_illegal_answer(frame, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    normtune.fit(frame, name="NVIDIA H200", target="sm_90", leaves=4).save("table.py", evidence="times.parquet")
    done = main("check", "table.py")
    assert done.exit_code == 0 and "equal, byte for byte" in done.output, done.output
    text = (tmp_path / "table.py").read_text()
    (tmp_path / "table.py").write_text(text.replace("BLOCK=64", "BLOCK=128"))
    done = main("check", "table.py")
    assert done.exit_code == 1 and "illegal" in done.output, done.output


@pytest.mark.slow
def test_a_fit_beside_the_table_that_it_replaces_compares_all_three_sizes(frame, tmp_path) -> None:
    path = tmp_path / "table.py"
    gpu = {"name": "NVIDIA H200", "target": "sm_90", "leaves": 4}
    normtune.fit(frame, **gpu).save(path)
    first = path.read_text()
    again = normtune.fit(frame, **gpu, replaces=path)
    again.save(path)
    assert path.read_text() == first
    compared = normtune.fit(frame, **gpu, baseline=str(path))
    assert compared.functions[0].figures.uncompared == 0


def test_views_show_a_map_of_two_sizes_for_each_of_the_third(frame, tmp_path) -> None:
    path, times = tmp_path / "table.py", tmp_path / "times.parquet"
    normtune.fit(frame, name="NVIDIA H200", target="sm_90").save(path, evidence=times)
    screen = succeed("show", path, "--store", times)
    assert "product.k=512 float16: the configs of table.py" in screen and "\n n 1 16 256 4k\n" in screen, screen
    shown = normtune.show_map(times, table=path)
    assert {*shown.operator} == {f"product.k={k}" for k in K}
    assert (shown.config == shown.best).all()
    found = diff(path, path, times)
    assert [result.faster() for part in found.devices for result in part.differences] == [0.0] * len(K)


def test_what_three_sizes_do_not_have_is_told(frame) -> None:
    table = normtune.fit(frame, name="NVIDIA H200", target="sm_90", batch_invariant=True)
    assert not any(function.key.is_batch_invariant for function in table.functions)
    assert (
        "product float16 has the sizes m, n, k: only functions of rows and hidden can be batch-invariant" in table.notes
    )
    functions = [
        type("Function", (), {"key": Key.of(name, "", "float16"), "tree": Leaf(TileConfig(16, 4)), "served": []})()
        for name in ("product", "rms_norm_forward")
    ]
    with pytest.raises(NormtuneError, match=r"operators with sizes m, n, k \(product\) and rows, hidden"):
        body_text(functions, everywhere(functions))


def test_weights_are_given_by_the_columns_of_the_sizes(frame, tmp_path) -> None:
    path = tmp_path / "weights.csv"
    for line, best in (("8192,4096,4096,1", 64), ("32,1,64,1", 16)):
        path.write_text(f"k,m,n,weight\n{line}\n")
        table = normtune.fit(frame, name="NVIDIA H200", target="sm_90", leaves=1, weights=path)
        assert best == table.lookup("product", "float16", 256, 1024, 512).BLOCK
    with pytest.raises(UsageError, match="256 x 1024: expected positive integers, m, n, k"):
        table.lookup("product", "float16", 256, 1024)
    assert table.functions[0].figures.loss.problems == 1  # those of the file
    path.write_text("k,m,weight\n512,4096,1\n")
    with pytest.raises(UsageError, match=r"has no column .rows."):
        normtune.fit(frame, name="NVIDIA H200", target="sm_90", weights=path)


def test_a_table_of_three_sizes_is_not_refined(frame, tmp_path) -> None:
    path = tmp_path / "table.py"
    normtune.fit(frame, name="NVIDIA H200", target="sm_90").save(path)
    with pytest.raises(UsageError, match="has thresholds of m, n, k: refine takes tables of rows and hidden"):
        normtune.sweep(refine=path, dtypes="float16", dry_run=True)


def test_the_operator_of_a_fit_names_all_members(frame) -> None:
    other = frame.assign(
        operator="rms_norm_forward", config=[operator("rms_norm_forward").config("row", 1, 4)] * len(frame)
    )
    both = pd.concat([frame, other.drop_duplicates(["rows", "hidden"])])
    table = normtune.fit(both, name="NVIDIA H200", target="sm_90", operators="product")
    assert [function.key.operator for function in table.functions] == ["product"]
    assert np.isfinite(table.figures().faster).all()


@pytest.fixture
def by_tiles(product):
    """Made-up times by a law of m * n: the larger block is best from 2**18 on."""
    rows = [
        (
            f"product.k={k}",
            "float16",
            m,
            n,
            TileConfig(block, 4),
            10_000 if (block > 16) == (m * n >= 1 << 18) else 20_000,
        )
        for m in M
        for n in N
        for k in K
        for block in (16, 64)
    ]
    return pd.DataFrame(rows, columns=["operator", "dtype", "rows", "hidden", "config", "nanoseconds"])


@pytest.mark.parametrize("derived", ["m * n"])
def test_a_table_has_thresholds_on_a_derived_size(by_tiles, derived, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = normtune.fit(by_tiles, name="NVIDIA H200", target="sm_90")
    (function,) = table.functions
    assert function.figures.leaves == 2 and function.figures.loss.worst == 0 == function.figures.gap
    # The middle of the gap between 2**16 and 2**18.
    assert function.tree == Split("m * n", 1 << 17, Leaf(TileConfig(16, 4)), Leaf(TileConfig(64, 4)))
    table.save("table.py", evidence="times.parquet")
    text = (tmp_path / "table.py").read_text()
    assert "    if m * n >= 131072:\n" in text and "def product_float16(m: int, n: int, k: int)" in text
    assert parse.trees(text)[function.key] == function.tree
    lookup = module_of(text)["lookup"]
    assert locate.load(tmp_path / "table.py").lookup("product", "float16", 512, 256, 7).BLOCK == 64
    assert [lookup("product", "float16", 512, n, 7).BLOCK for n in (255, 256, 10**6)] == [16, 64, 64]
    done = main("check", "table.py")
    assert done.exit_code == 0 and "equal, byte for byte" in done.output, done.output
    shown = normtune.show_map("times.parquet", table="table.py")
    assert (shown.config == shown.best).all()
    found = diff("table.py", "table.py", "times.parquet")
    assert [result.faster() for part in found.devices for result in part.differences] == [0.0] * len(K)
    with pytest.raises(UsageError, match=r"has thresholds of m, n, k, m \* n: refine takes tables of rows and hidden"):
        normtune.sweep(refine="table.py", dtypes="float16", dry_run=True)
    for other in ("m ** n >= 131072", "m - n >= 131072", "m * n <= 131072", "m * q >= 131072"):
        with pytest.raises(NormtuneError, match="a form that normtune does not write"):
            parse.trees(text.replace("m * n >= 131072", other))


@pytest.mark.slow
@pytest.mark.parametrize("derived", ["m * n"])
def test_no_threshold_on_a_derived_size_makes_a_config_legal(frame, derived) -> None:
    table = normtune.fit(frame, name="NVIDIA H200", target="sm_90")
    assert table.functions[0].figures.loss.worst == 0
    assert {table.lookup("product", "float16", 4096, 4096, k).BLOCK for k in (2049, 5000, 10**6)} <= {16, 64}


def test_a_fault_of_a_derived_size_is_told() -> None:
    with pytest.raises(UsageError, match="operator 'wrong': derived size 'm - n' of m, n: expected sums, products"):
        kernel_operator(
            config=TileConfig,
            space={"BLOCK": (16,), "num_warps": (4,)},
            axes={"m": M, "n": N},
            derived="m - n",
            buffers={"a": "input m,n", "c": "output m,n"},
            reference=lambda a: a,
            name="wrong",
        )(lambda a, c, config: None)
