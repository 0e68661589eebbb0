"""`--device`: one GPU's measurements of a store of several, read from the database alone."""

import pytest
import sqlalchemy as sa

from normtune import export_data, fit, show
from normtune.errors import UsageError
from normtune.heuristics.writing.named_files import measured
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.tablefile.locate import load_table
from normtune.results.database.store import Store
from normtune.results.evidence import Evidence
from normtune.tests.commands import one_line, refused, succeed
from normtune.tests.results.conftest import build_measurement, build_run
from normtune.tests.results.stores import merge

OTHER = "NVIDIA H100"
FEW = ("--leaves", "2")


@pytest.fixture
def recorded(measure, penalty, run, spec):
    """Measurements of `toy` on one GPU at six shapes."""
    shapes = [(rows, hidden) for rows in (1, 64, 4096) for hidden in (64, 512)]
    return Evidence.from_measurements(measure(penalty, shapes, fingerprint=fingerprint(spec)), [run])


@pytest.fixture
def both(recorded, tmp_path, monkeypatch):
    """A store with that GPU and another one with the same times."""
    monkeypatch.chdir(tmp_path)
    runs = [run._replace(id=f"{run.id}b", device=run.device._replace(name=OTHER, sms=114)) for run in recorded.runs]
    items = [one._replace(run=f"{one.run}b") for one in recorded.measurements()]
    merge("both.db", recorded, Evidence.from_measurements(items, runs))
    return "both.db"


def test_fit_of_one_of_two_gpus_is_that_of_it_alone(recorded, both):
    merge("alone.db", recorded)
    with pytest.raises(UsageError, match="114"):
        fit(both)
    label = recorded.devices()[0].label
    succeed("fit", "--store", both, *FEW, "--device", label, "--out", "one.py", "--evidence", "one.parquet")
    succeed("fit", "--store", "alone.db", *FEW, "--out", "alone.py", "--evidence", "alone.parquet")
    one, alone = (load_table(f"{name}.py") for name in ("one", "alone"))
    assert one.trees == alone.trees and one.header.data == alone.header.data
    assert one.header.command["options"]["device"] == label
    assert succeed("check", "one.py")
    # The header's command filters again where it names a file with more.
    export_data("both.parquet", both)
    succeed("fit", "--store", "both.parquet", *FEW, "--device", label, "--out", "file.py")
    table = load_table("file.py")
    assert measured(table.header, table.source)[1].digest() == alone.header.data.digest


def test_nothing_of_other_gpus_is_read(both, recorded):
    read = []
    with Store.open(both, create=False) as store:
        sa.event.listen(store._engine, "after_cursor_execute", lambda *event: read.append((event[2], event[3])))
        table = fit(store, device=OTHER, leaves=1)
        assert len(table.evidence.frame) == len(recorded.frame)
        others = {run.id for run in store.runs() if run.device.label != OTHER}
        with store._engine.connect() as connection:
            numbers = set(
                connection.execute(
                    sa.text("SELECT id FROM run WHERE run IN :ids").bindparams(
                        sa.bindparam("ids", sorted(others), expanding=True)
                    )
                ).scalars()
            )
    samples = [parameters for statement, parameters in read if "measurement.samples" in statement]
    assert samples and not any(numbers & {*parameters} for parameters in samples)


def test_lists_of_one_gpu_and_errors(both):
    assert set(show(both, device=OTHER)["device"]) == {OTHER}
    told = refused("fit", "--store", both, "--device", "H300", kind=UsageError)
    assert "--device is 'H300': measured are NVIDIA H100, Test GPU" in told
    with one_line(UsageError, "device is 'H300': measured are NVIDIA H100, Test GPU"):
        show(both, device="H300")


def test_a_list_of_many_gpus_has_a_line_for_each(tmp_path):
    runs = [build_run(number, name=f"GPU {number:02d}") for number in range(25)]
    merge(tmp_path / "many.db", Evidence.from_measurements([build_measurement(run=run) for run in runs], runs))
    lines = succeed("data", "list", "--store", tmp_path / "many.db").splitlines()
    assert len(lines) == 26 and lines[3] == "GPU 03, 132 SMs: 1 measurements of 1 operators and dtypes"
