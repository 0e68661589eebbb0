"""Two sweeps with known tables: loss of each on the other's times, and the noise floor."""

import json
import math
import sys
from dataclasses import replace

import numpy as np
import pytest

from normtune.benchmarks.lib.two_sweeps import crossed, swept
from normtune.benchmarks.two_sweeps import main
from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.fitting.options import FitOptions
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.results.evidence import Evidence
from normtune.results.exchange.parquet_csv import write_parquet
from normtune.results.records import Measurement

FEW, MANY = RMSNormConfig("row", 1, 4), RMSNormConfig("row", 1, 16)
ROWS, HIDDEN = (16, 1024), (128, 256, 512, 1024, 2048)
EQUAL = FitOptions(leaves=2)


def sweep(run, upto, slower=1.2, flipped=(), rows=ROWS, dtype="bfloat16"):
    """FEW is best up to a hidden size, MANY above; at `flipped` sizes FEW in even blocks, MANY in odd ones."""
    rounds = np.arange(16, dtype=np.int32)
    found = []
    for shape in [(row, hidden) for row in rows for hidden in HIDDEN]:
        for config in (FEW, MANY):
            few_is_best = np.full(16, shape[1] <= upto)
            if shape[1] in flipped:
                few_is_best = rounds // 2 % 2 == 0
            times = np.where(few_is_best == (config == FEW), 1_000_000, round(1_000_000 * slower)).astype(np.int32)
            found.append(
                Measurement(Problem.of("toy", *shape, dtype), config, run.id, "sha256:0", "ok", "", rounds, times)
            )
    return Evidence.from_measurements(found, [run])


def test_each_table_loses_on_the_other_where_they_differ(spec, run):
    left, right = sweep(run, 512), sweep(run, 1024, slower=1.5)
    (found,) = crossed(swept(left, EQUAL), swept(right, EQUAL), EQUAL)
    assert (found.key, found.dtype, found.shapes, found.scored) == ("toy", "bfloat16", 10, (10, 10))
    # A fifth of the shapes, those of hidden 1024: on the second sweep it costs 1.5 times, on the first 1.2 times.
    assert found.losses[0] == pytest.approx(1e6 * math.log(1.5) / 5, abs=2)
    assert found.losses[1] == pytest.approx(1e6 * math.log(1.2) / 5, abs=2)
    assert found.floors == (0, 0)
    assert found.differing == pytest.approx(0.2)
    assert found.loss == pytest.approx(1e6 * math.log(1.8) / 10, abs=2)


def test_a_sweep_loses_nothing_by_its_own_table(spec, run):
    one = swept(sweep(run, 512), EQUAL)
    (found,) = crossed(one, one, EQUAL)
    assert (found.losses, found.differing, found.floor) == ((0, 0), 0.0, 0.0)


def test_the_floor_is_what_the_halves_lose_on_each_other(spec, run):
    noisy = swept(sweep(run, 512, flipped=(1024,)), EQUAL)
    (found,) = crossed(noisy, noisy, EQUAL)
    assert found.floor == pytest.approx(1e6 * math.log(1.2) / 5, abs=2)
    assert found.losses == (0, 0)


def test_only_common_shapes_are_compared(spec, run):
    left, right = sweep(run, 512, rows=(16, 1024, 4096)), sweep(run, 1024, rows=(1024, 65536))
    (found,) = crossed(swept(left, EQUAL), swept(right, EQUAL), EQUAL)
    assert found.shapes == 5
    assert found.losses[0] == pytest.approx(1e6 * math.log(1.2) / 5, abs=2)


def test_a_config_without_a_time_in_the_other_sweep_is_not_scored(spec, run):
    left, right = sweep(run, 512), sweep(run, 1024)
    lacking = [one for one in right.measurements() if not (one.config == MANY and one.problem.hidden == 1024)]
    options = replace(EQUAL, leaves=2)
    (found,) = crossed(swept(left, options), swept(Evidence.from_measurements(lacking, [run]), options), options)
    assert found.scored == (10, 8)
    assert found.losses[0] == 0


@pytest.mark.slow
def test_sweeps_of_nothing_in_common_are_told(spec, run):
    left, right = sweep(run, 512), sweep(run, 512, dtype="float32")
    with pytest.raises(NormtuneError, match="no shapes of an operator and dtype in common"):
        crossed(swept(left, EQUAL), swept(right, EQUAL), EQUAL)


def test_gpus_of_different_kinds_are_told(spec, run):
    other = replace_device(run, sms=114)
    with pytest.raises(UsageError, match=r"different kinds of GPU: .*132 SMs and .*114 SMs"):
        crossed(swept(sweep(run, 512), EQUAL), swept(sweep(other, 512), EQUAL), EQUAL)


@pytest.mark.slow
def test_the_benchmark_prints_and_writes_it(spec, run, tmp_path, monkeypatch, capsys):
    files = [tmp_path / name for name in ("a.parquet", "b.parquet")]
    for path, upto in zip(files, (512, 1024), strict=True):
        write_parquet(sweep(run, upto), path)
    out = tmp_path / "out.json"
    words = ["two_sweeps.py", str(files[0]), str(files[0]), "--leaves", "2", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    main()
    assert "all at most 0.3 % above the noise floor" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*words[:2], str(files[1]), *words[3:]])
    with pytest.raises(SystemExit, match=r"more than 0\.3 % above the noise floor: toy bfloat16"):
        main()
    (told,) = json.loads(out.read_text())["kinds"]
    # All ten shapes weigh about as much; two of them cost 1.2 times.
    assert told["loss"] == pytest.approx(1e6 * math.log(1.2) / 5, rel=0.3)
    assert (told["floor"], told["shapes"]) == (0, 10)
    (row,) = (line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("toy bfloat16"))
    assert float(row[2]) == pytest.approx(told["losses"][0] / 1e4, abs=0.01)


def replace_device(run, **changed):
    return run._replace(device=run.device._replace(**changed))
