"""`fit --install` and `normtune table`: refusals, replaced and removed files, messages."""

from collections.abc import Callable
from pathlib import Path

import pytest

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.api import fit as api
from normtune.heuristics.writing import installing
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.header import Gpu
from normtune.tests import commands
from normtune.tests.commands import succeed
from normtune.tests.heuristics.made_up import regenerate
from normtune.tests.results.stores import record

SHAPES = [(rows, hidden) for rows in (1, 64, 4096) for hidden in (64, 512, 4096)]


@pytest.fixture
def store(measure, penalty, run, spec, here: Path) -> Callable[..., None]:
    """Makes a store, ./normtune.db, with measurements of `toy` on a GPU of this name."""

    def make(name: str, uuid: str = "GPU-1", place: str = "normtune.db") -> None:
        record(
            f"sqlite:///{place}",
            run._replace(device=run.device._replace(name=name, uuid=uuid)),
            measure(penalty, SHAPES, fingerprint=fingerprint(spec)),
        )

    return make


def fit(*arguments: str) -> str:
    return succeed("fit", "--leaves", "2", *arguments)


def remove(*arguments: str) -> str:
    return succeed("table", "remove", *arguments)


def refused(*arguments: str, kind: type[NormtuneError] = UsageError) -> str:
    words = ("table", "remove", *arguments[1:]) if arguments[0] == "remove" else ("fit", "--leaves", "2", *arguments)
    return commands.refused(*words, kind=kind)


@pytest.mark.slow
def test_an_installation_says_what_it_displaces(store) -> None:
    store("NVIDIA H200")
    path = locate.installed_path("NVIDIA H200")
    told = f"installed {path}: kernels on NVIDIA H200 use it from now on, in place of"
    ends = "  it answers at rows 1 to 8192, hidden 32 to 8192; the next table elsewhere, or the default config\n"
    assert f"{told} the table of NVIDIA H200\n{ends}" in fit("--install")
    assert f"{told} the installed table {path}\n" in fit("--install")
    path.write_text("x = 1\n")
    assert f"{told} the installed table {path}, which cannot be used\n" in fit("--install", "--force")


@pytest.mark.slow
@pytest.mark.parametrize("damage", ['# "data": ' + "9" * 900_000, '# "data": 9\n' + "#   9\n" * 70_000, "\0"])
def test_force_installs_over_and_removes_any_file(store, damage: str) -> None:
    store("NVIDIA H200")
    fit("--install")
    path = locate.installed_path("NVIDIA H200")
    lines = path.read_text().split("\n")
    at = next(place for place, line in enumerate(lines) if line.startswith('# "data":'))
    damaged = "\n".join([*lines[:at], damage, *lines[at + 1 :]])
    path.write_text(damaged)
    assert "edited since" in refused("--install")
    assert "which cannot be used" in fit("--install", "--force")
    path.write_text(damaged)
    assert "edited since" in refused("remove", "--store", "normtune.db")
    assert "removed" in remove("--force", "--store", "normtune.db")
    assert not path.exists()


def test_a_gpu_without_a_table_had_that_of_the_nearest_one(store) -> None:
    store("NVIDIA X")
    assert "in place of the table of NVIDIA H100 80GB HBM3, which is unmeasured there" in fit("--install")


@pytest.mark.slow
def test_a_replay_is_installed_by_force_alone(store) -> None:
    store("NVIDIA H200", "replay:nvidia-h200")
    told = refused("--install", "--out", "table.py")
    assert told.startswith(
        "this would install a table for NVIDIA H200 (replay), but its times are those of a recording"
    )
    assert "kernels on NVIDIA H200 would use it in place of the table of NVIDIA H200; --force installs" in told
    assert not locate.installed_folder().exists()
    assert not Path("table.py").exists()
    assert "in place of the table of NVIDIA H200" in fit("--install", "--force")
    assert locate.select("NVIDIA H200", "sm_90", 132).tables[0][1]().source == locate.installed_path("NVIDIA H200")


def test_the_table_of_another_gpu_is_installed_by_force_alone(store, gpus_here: list[Gpu]) -> None:
    store("NVIDIA X")
    gpus_here += [Gpu("NVIDIA H200", "sm_90", 132)] * 2
    told = refused("--install")
    assert told.startswith(
        "this would install a table for NVIDIA X, but this machine has NVIDIA H200; kernels on NVIDIA X"
    )
    assert not locate.installed_folder().exists()
    fit("--install", "--force")
    assert locate.installed_path("NVIDIA X").exists()
    gpus_here.append(Gpu("NVIDIA  X", "sm_90", 132))
    fit("--install")


@pytest.mark.slow
def test_what_is_removed_is_told_and_what_serves_then(store, gpus_here: list[Gpu]) -> None:
    store("NVIDIA H200")
    store("NVIDIA X", place="other.db")
    fit("--install")
    fit("--install", "--store", "other.db")
    path = locate.installed_path("NVIDIA H200")
    gpus_here.append(Gpu("NVIDIA H200", "sm_90", 132))
    assert remove() == (f"removed {path}\nkernels on NVIDIA H200 use the table of NVIDIA H200 from now on\n")
    other = locate.installed_path("NVIDIA X")
    assert locate.installed() == [other]
    told = refused("remove", kind=NormtuneError)
    assert told == f"no table is installed for NVIDIA H200; installed is {other}"
    told = remove("--store", "other.db")
    assert told.startswith(f"removed {other}\nkernels on NVIDIA X use the table of NVIDIA H100 80GB HBM3, which is ")
    assert locate.installed() == []
    assert refused("remove", kind=NormtuneError).endswith("H200; nothing is installed")


def test_a_table_that_exists_is_installed_and_nothing_is_fitted(store, monkeypatch: pytest.MonkeyPatch) -> None:
    store("NVIDIA H200")
    Path("weights.csv").write_text("rows,hidden,weight\n" + "".join(f"{rows},{hidden},1\n" for rows, hidden in SHAPES))
    Path("tables").mkdir()
    options = ("--weights", "weights.csv", "--operator", "toy", "--baseline", "none")
    printed = fit(*options, "--out", "tables/toy.py", "--evidence", "tables/toy.parquet")
    (line,) = (line.strip() for line in printed.splitlines() if "install" in line)
    words = line.partition(": ")[0].split()
    path = locate.installed_path("NVIDIA H200")
    fit(*options, "--install")
    fitted = path.read_text()
    path.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(api, "fit_evidence", None)
        told = succeed(*words[1:])
    assert told == (
        f"installed {path}: kernels on NVIDIA H200 use it from now on, in place of the table of NVIDIA H200\n"
        "  it answers at rows 1 to 8192, hidden 32 to 8192; the next table elsewhere, or the default config\n"
    )
    assert path.read_text() == fitted
    monkeypatch.chdir(path.parent)  # where the command of its header is to be run
    succeed(*regenerate(locate.header_of(path)).split()[1:])
    assert path.read_text() == fitted


def test_code_of_another_form_is_not_installed(store) -> None:
    store("NVIDIA H200")
    fit("--out", "toy.py")
    Path("hostile.py").write_text(Path("toy.py").read_text().replace("\n\n\ndef ", "\nimport os\n\n\ndef ", 1))
    assert "table hostile.py cannot be used" in commands.refused("table", "install", "hostile.py")
    assert locate.installed() == []


def test_the_table_of_a_replay_or_another_gpu_is_installed_by_force_alone(store, gpus_here: list[Gpu]) -> None:
    store("NVIDIA H200", "replay:nvidia-h200")
    printed = fit("--out", "toy.py")
    assert "install" not in printed and "--force" not in printed
    assert "its times are those of a recording" in commands.refused("table", "install", "toy.py")
    gpus_here.append(Gpu("NVIDIA X", "sm_90", 132))
    table = Path(locate.SHIPPED, "nvidia_h200_qk_norm.py")
    assert "but this machine has NVIDIA X" in commands.refused("table", "install", table)
    assert locate.installed() == []
    succeed("table", "install", "toy.py", "--force")
    assert locate.select("NVIDIA H200", "sm_90", 132).tables[0][1]().source == locate.installed_path("NVIDIA H200")


@pytest.mark.slow
def test_without_a_gpu_the_only_one_is_meant(store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, place in (("NVIDIA H200", "normtune.db"), ("NVIDIA X", "other.db")):
        store(name, place=place)
        fit("--install", "--store", place)
    both = ", ".join(map(str, locate.installed()))
    assert f"this machine has no GPU, and several tables are installed: {both}; choose one by" in refused("remove")
    assert len(locate.installed()) == 2
    remove("--store", "other.db")
    fit("--out", "named.py")
    monkeypatch.setenv(locate.VARIABLE, "named.py")
    assert "kernels on NVIDIA H200 use named.py (NORMTUNE_TABLE) from now on" in remove()
    assert locate.installed() == []


@pytest.mark.slow
def test_what_somebody_edited_is_removed_by_force_alone(store) -> None:
    store("NVIDIA H200")
    fit("--install")
    path = locate.installed_path("NVIDIA H200")
    path.write_text(path.read_text() + "x = 1\n")
    assert refused("remove") == (f"cannot remove {path}: it was edited since normtune wrote it; --force removes it")
    assert path.exists()
    assert f"removed {path}" in remove("--force")


def test_torch_is_asked_for_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    from normtune.kernels.calling import probe

    monkeypatch.undo()
    gpu = {"name": "NVIDIA H200", "target": "sm_90", "sms": 132, "uuid": "1"}
    for facts, found in (({"gpus": [gpu]}, [Gpu("NVIDIA H200", "sm_90", 132)]), ({"missing": "it"}, [])):
        monkeypatch.setattr(probe, "facts_in_child", lambda asked, facts=facts: {probe.torch_facts: facts}[asked])
        assert installing.gpus_here() == found
