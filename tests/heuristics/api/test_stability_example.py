"""`examples/stability.py`: times without noise change nothing, planted noise changes what it should."""

import sys
from pathlib import Path

import numpy as np
import pytest

from normtune.examples import stability
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.results.evidence import Evidence
from normtune.results.exchange.parquet_csv import write_parquet
from normtune.results.records import ROUNDS_PER_BLOCK, UNPAIRED, Measurement

FEW, MANY = RMSNormConfig("row", 1, 4), RMSNormConfig("row", 1, 16)
ROWS, HIDDEN = (16, 1024), (128, 256, 512, 1024, 2048)


def measured(run, noisy: int = 0) -> Evidence:
    """FEW is best to hidden 512, MANY above; at `noisy` sizes FEW in even blocks, MANY in odd ones."""
    rounds = np.arange(16, dtype=np.int32)
    items = []
    for shape in [(rows, hidden) for rows in ROWS for hidden in HIDDEN]:
        for config in (FEW, MANY):
            is_few = np.full(16, shape[1] <= 512) if shape[1] != noisy else rounds // 2 % 2 == 0
            samples = np.where(is_few == (config == FEW), 1_000_000, 1_200_000).astype(np.int32) + 10 * rounds
            items.append(
                Measurement(
                    Problem.of("toy", *shape, "bfloat16"), config, run.id, "sha256:0", "ok", "", rounds, samples
                )
            )
    return Evidence.from_measurements(items, [run])


def printed(evidence: Evidence, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    write_parquet(evidence, Path("times.parquet"))
    monkeypatch.setattr(sys, "argv", ["stability.py", "times.parquet", "--leaves", "2", "--draws", "12"])
    stability.main()
    return capsys.readouterr().out.splitlines()


def test_a_draw_keeps_rounds_paired_and_whole_blocks_together(run, spec) -> None:
    evidence = measured(run)
    frame = stability.drawn(evidence, np.random.default_rng(1)).frame
    assert stability.ROUNDS_PER_BLOCK == ROUNDS_PER_BLOCK
    assert (frame["operator"] == "toy").all() and len(frame) == len(evidence.frame)
    places = frame["samples"].map(lambda samples: samples % 1_000 // 10)
    for _, problem in frame.groupby(["rows", "hidden"]):
        assert problem["rounds"].map(list).tolist() == [list(range(16))] * 2
        first, second = places[problem.index]
        assert (first == second).all() and (first[0::2] % 2 == 0).all() and (first[1::2] == first[0::2] + 1).all()
    assert len({tuple(row) for row in places}) > 5  # problems have draws of their own


def test_a_config_without_a_drawn_round_is_left_out(run, spec) -> None:
    items = measured(run).measurements()
    short = [
        item._replace(rounds=item.rounds[:2], samples=item.samples[:2]) if item.config == MANY else item
        for item in items
    ]
    generator = np.random.default_rng(0)
    frame = stability.drawn(Evidence.from_measurements(short, [run]), generator).frame
    counts = frame["config"].value_counts()
    assert len(ROWS) * len(HIDDEN) == counts.max() > counts.min() > 0


@pytest.mark.slow
def test_without_noise_all_choices_stay(run, spec, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    lines = printed(measured(run), monkeypatch, capsys)
    assert lines[0] == "toy bfloat16: the config stays at 100 % of 10 shapes, loses 0.00 % more"
    assert lines[-1] == "toy bfloat16: hidden <= 512 in 100 % of the draws"


@pytest.mark.slow
def test_noise_moves_the_threshold_beside_it(run, spec, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    lines = printed(measured(run, noisy=1024), monkeypatch, capsys)
    stays = float(lines[0].partition(" stays at ")[2].partition(" %")[0])
    assert 80 <= stays < 100
    assert {line.partition(" in ")[0].split(" of ")[1] for line in lines[1:3]} == {"1024"}
    assert lines[-1].startswith("toy bfloat16: hidden <= ")
    assert 0 < float(lines[-1].partition(" in ")[2].partition(" %")[0]) < 100


def test_times_without_rounds_are_refused(run, spec, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="the times are of another program, without rounds to resample"):
        printed(measured(run._replace(protocol={UNPAIRED: True})), monkeypatch, capsys)


@pytest.mark.parametrize(
    ("words", "message"),
    [(["missing.db"], "there is no store missing.db"), (["--draws", "0"], "--draws is 0: expected at least 1")],
)
def test_bad_input_is_told_in_one_line(words, message, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["stability.py", *words])
    with pytest.raises(SystemExit) as error:
        stability.main()
    assert message in f"{error.value}{capsys.readouterr().err}"
