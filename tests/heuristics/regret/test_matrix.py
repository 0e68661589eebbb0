from dataclasses import replace

import numpy as np
import pytest

from normtune.heuristics.regret.matrix import LEAST_ASSUMED, MISSING, timing_matrix
from normtune.kernels.config import COPY, Config
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.results.evidence import Evidence
from normtune.results.records import Measurement, Run

FAST, SLOW = RMSNormConfig("row", 1, 4), RMSNormConfig("row", 1, 8)
ROUNDS = np.arange(8, dtype=np.int32)
EVEN = (ROUNDS // 2) % 2 == 0


def cell(config: Config, even: int, odd: int, hidden: int = 64, status: str = "ok") -> Measurement:
    problem = Problem.of("toy", 8, hidden, "bfloat16")
    times = np.where(EVEN, even, odd).astype(np.int32)
    if status != "ok":
        empty = np.zeros(0, np.int32)
        return Measurement(problem, config, "run1", "f", status, "because", empty, empty)
    return Measurement(problem, config, "run1", "f", "ok", "", ROUNDS, times)


def matrix_of(cells: list[Measurement], run: Run, spec: OperatorSpec):
    return timing_matrix(Evidence.from_measurements(cells, [run]), spec, spec.key("bfloat16"), TARGETS["sm_90"])


def test_the_best_is_chosen_on_one_half_and_scored_on_the_other(spec: OperatorSpec, run: Run) -> None:
    third = RMSNormConfig("row", 1, 2)
    # FAST wins the even blocks by luck, SLOW the odd ones.
    found = matrix_of([cell(FAST, 1000, 1200), cell(SLOW, 1100, 1100), cell(third, 2000, 2000)], run, spec)
    log = lambda ratio: 1e6 * np.log(ratio)  # noqa: E731
    expected_fast = (log(1200 / 1200) + log(1000 / 1100)) / 2
    expected_slow = (log(1100 / 1200) + log(1100 / 1100)) / 2
    assert found.loss(0, FAST) == pytest.approx(expected_fast, abs=2)
    assert found.loss(0, SLOW) == pytest.approx(expected_slow, abs=2)
    assert found.regret.dtype == np.int64


def test_equal_launches_share_a_time_and_the_copy_is_no_candidate(spec: OperatorSpec, run: Run) -> None:
    # At hidden 2048 a block of 4 rows with one warp is lowered to one row, which is the launch of a row config.
    alias, own = RMSNormConfig("block_row", 4, 1), RMSNormConfig("row", 1, 1)
    cells = [cell(own, 1000, 1000, 2048), cell(FAST, 900, 900, 2048), cell(COPY, 500, 500, 2048)]
    cells += [cell(alias, 700, 700, 64), cell(own, 900, 900, 64)]
    found = matrix_of(cells, run, spec)
    wide = found.problems.index((8, 2048))
    assert found.configs == (alias, own, FAST)
    assert found.loss(wide, alias) == found.loss(wide, own) == pytest.approx(1e6 * np.log(1000 / 900), abs=2)
    assert found.loss(found.problems.index((8, 64)), FAST) is None


def test_a_failure_is_no_time_even_where_its_launch_has_one(spec: OperatorSpec, run: Run) -> None:
    alias, own = RMSNormConfig("block_row", 4, 1), RMSNormConfig("row", 1, 1)
    cells = [cell(own, 1000, 1000, 2048), cell(alias, 0, 0, 2048, "wrong_result"), cell(SLOW, 0, 0, 2048, "crashed")]
    cells += [cell(alias, 700, 700, 64), cell(SLOW, 900, 900, 64)]
    found = matrix_of(cells, run, spec)
    wide = found.problems.index((8, 2048))
    assert found.loss(wide, alias) is None
    assert found.loss(wide, SLOW) is None
    assert found.loss(wide, own) == 0
    assert not found.regret[wide][~found.usable[wide]].any()
    assert not found.untimed[wide].any()


def test_what_was_not_timed_counts_as_the_slowest_that_was_and_by_5_percent_at_least(
    spec: OperatorSpec, run: Run
) -> None:
    alias, own, third = RMSNormConfig("block_row", 4, 1), RMSNormConfig("row", 1, 1), RMSNormConfig("row", 1, 2)
    cells = [cell(FAST, 1000, 1000), cell(SLOW, 1300, 1300), cell(third, 1020, 1020)]
    cells += [cell(FAST, 1000, 1000, 128), cell(third, 1010, 1010, 128)]
    cells += [cell(SLOW, 1000, 1000, 2048), cell(own, 0, 0, 2048, "wrong_result"), cell(alias, 700, 700, 128)]
    found = matrix_of(cells, run, spec)
    column = {config: place for place, config in enumerate(found.configs)}
    near, middle, wide = (found.problems.index((8, hidden)) for hidden in (64, 128, 2048))
    assert found.assumed.loss(near, alias) == found.loss(near, SLOW) == pytest.approx(1e6 * np.log(1.3), abs=2)
    assert found.assumed.loss(middle, SLOW) == found.loss(middle, third) == pytest.approx(1e6 * np.log(10.1 / 7), abs=2)
    assert found.assumed.loss(wide, FAST) == LEAST_ASSUMED == pytest.approx(1e6 * np.log(1.05), abs=2)
    # A launch that failed may not answer, whoever's it is; nor may what is untimed where a condition bounds the loss.
    assert not found.untimed[wide, column[alias]] and found.assumed.loss(wide, alias) is None
    assert found.within(10**7).assumed.loss(near, alias) is None
    assert found.loss(near, alias) is None and found.untimed[near, column[alias]]
    # Slices keep it, however few configs are left.
    assert found.of_configs([alias]).assumed.loss(near, alias) == found.assumed.loss(near, alias)


def test_a_binary_that_the_compiler_refused_answers_no_other_shape_either(spec: OperatorSpec, run: Run) -> None:
    def at(rows: int, measured: Measurement) -> Measurement:
        return measured._replace(problem=measured.problem._replace(rows=rows))

    cells = [cell(FAST, 1000, 1000), cell(SLOW, 0, 0, status="compile_error"), cell(SLOW, 1100, 1100, 128)]
    cells += [at(16, cell(FAST, 1000, 1000)), at(16, cell(FAST, 1000, 1000, 256))]
    found = matrix_of(cells, run, spec)
    slow = found.configs.index(SLOW)
    untimed = {shape for shape, is_untimed in zip(found.problems, found.untimed[:, slow], strict=True) if is_untimed}
    assert untimed == {(16, 256)}  # another width, hence another binary; at (16, 64) it is that of (8, 64)
    assert found.assumed.loss(found.problems.index((16, 64)), SLOW) is None
    # A crash says nothing of other shapes, and a time of the same binary shows that it can be compiled.
    crashed = matrix_of([cells[0], cell(SLOW, 0, 0, status="crashed"), *cells[2:]], run, spec)
    assert crashed.untimed[crashed.problems.index((16, 64)), slow]
    timed = matrix_of([*cells, at(32, cell(SLOW, 1000, 1000))], run, spec)
    assert timed.untimed[timed.problems.index((16, 64)), slow]


def test_what_is_illegal_by_now_has_no_time(spec: OperatorSpec, run: Run) -> None:
    cells = [cell(FAST, 1000, 1000), cell(SLOW, 1000, 1000)]
    stricter = replace(spec, resolve=_no_eight_warps(spec))
    found = matrix_of(cells, run, stricter)
    assert found.loss(0, SLOW) is None
    assert found.loss(0, FAST) == 0


def _no_eight_warps(spec: OperatorSpec):
    from normtune.kernels.operator import IllegalConfigError

    def resolve(config, problem, target, alignment):
        if config.num_warps == 8:
            raise IllegalConfigError("eight warps")
        return spec.resolve(config, problem, target, alignment)

    return resolve


def test_a_time_outranks_a_failure_but_a_wrong_result(spec: OperatorSpec, run: Run) -> None:
    later = run._replace(id="s", started="2027-01-02T00:00:00")
    cells = [cell(FAST, 1000, 1000), cell(SLOW, 0, 0, status="timeout")]
    again = [item._replace(run="s") for item in (cell(FAST, 2000, 2000), cell(SLOW, 2200, 2200))]
    evidence = Evidence.from_measurements(cells + again, [run, later])
    found = timing_matrix(evidence, spec, spec.key("bfloat16"), TARGETS["sm_90"])
    assert found.loss(0, SLOW) == pytest.approx(1e6 * np.log(1.1), abs=2)
    first = later._replace(started="2025-01-01T00:00:00")
    for status, is_known in (("timeout", True), ("crashed", True), ("wrong_result", False)):
        cells[1] = cell(SLOW, 0, 0, status=status)
        backwards = Evidence.from_measurements(cells + again, [run, first])
        loss = timing_matrix(backwards, spec, spec.key("bfloat16"), TARGETS["sm_90"]).loss(0, SLOW)
        assert (loss is not None) == is_known
        cells.append(cell(SLOW, 0, 0, status="crashed")._replace(run="u"))  # and a crash after it takes nothing back
        crashed = [run, first, run._replace(id="u", started="2028-01-01T00:00:00")]
        after = timing_matrix(
            Evidence.from_measurements(cells + again, crashed), spec, spec.key("bfloat16"), TARGETS["sm_90"]
        )
        assert (after.loss(0, SLOW) is not None) == is_known
        cells.pop()


def test_nothing_measured_gives_no_matrix(spec: OperatorSpec, run: Run) -> None:
    assert matrix_of([cell(FAST, 0, 0, status="compile_error")], run, spec) is None
    evidence = Evidence.from_measurements([cell(FAST, 1, 1)], [run])
    assert timing_matrix(evidence, spec, spec.key("bfloat16", "no_keep"), TARGETS["sm_90"]) is None


def test_the_paired_rounds_stand_behind_the_regret(spec: OperatorSpec, run: Run) -> None:
    alias, own = RMSNormConfig("block_row", 4, 1), RMSNormConfig("row", 1, 1)
    cells = [cell(own, 1000, 1000, 2048), cell(FAST, 900, 990, 2048), cell(alias, 700, 700, 64), cell(own, 900, 900)]
    found = matrix_of(cells, run, spec)
    wide, place = found.problems.index((8, 2048)), {config: index for index, config in enumerate(found.configs)}
    assert found.rounds is not None
    labels, logs = found.rounds.labels[wide], found.rounds.logs[found.rounds.places[wide]].astype(np.int64)
    assert labels.tolist() == ROUNDS.tolist()
    ratio = logs[place[own]] - logs[place[FAST]]
    assert ratio[EVEN] == pytest.approx(1e6 * np.log(1000 / 900), abs=2)
    assert ratio[~EVEN] == pytest.approx(1e6 * np.log(1000 / 990), abs=2)
    assert (logs[place[alias]] == logs[place[own]]).all()
    assert found.rounds.places[wide, place[alias]] == found.rounds.places[wide, place[own]] != 0
    assert (found.rounds.logs[0] == MISSING).all() and len(found.rounds.logs) == 5  # none for an alias
    narrow = found.problems.index((8, 64))
    assert found.rounds.places[narrow, place[FAST]] == 0
