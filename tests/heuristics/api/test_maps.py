"""The maps of `normtune show` as values: what the command prints, with losses as fractions."""

import pytest

import normtune
from normtune.errors import UsageError
from normtune.tests.commands import one_line, succeed


def test_the_best_configs_are_those_that_the_command_maps(store: str) -> None:
    frame = normtune.show_map(store)
    assert "300 measurements" in succeed("show", "--store", store)
    assert len(frame) == 35 and set(frame["device"]) == {"Test GPU"} and set(frame["operator"]) == {"toy"}
    assert frame["loss"].isna().all()
    row = frame[(frame["rows"] == 65536) & (frame["hidden"] == 64)].iloc[0]
    assert row["config"] == row["best"]
    assert (row["config"].schedule, row["config"].block_row) == ("block_row", 4)


def test_losses_of_a_table_are_fractions(store: str) -> None:
    normtune.fit(store, leaves=2).save("two.py")
    row = normtune.show_map(store, table="two.py").nlargest(1, "loss").iloc[0]
    assert f"{100 * row['loss']:.1f} % at {row['rows']} rows of {row['hidden']}" in succeed(
        "show", "two.py", "--store", store
    )
    assert row["config"] != row["best"]


def test_a_table_without_a_function_has_no_rows(store: str) -> None:
    frame = normtune.show_map(store, table="nvidia-h200")
    assert frame.empty and "loss" in frame
    assert "has no function for it" in succeed("show", "nvidia-h200", "--store", store)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda store: normtune.show_map(store, regime="hot"), "unknown regime 'hot'"),
        (lambda store: normtune.show_map(store, table="missing.py"), "missing.py is no file or shipped table"),
        (lambda store: normtune.show_map(store, operators="nothing"), "operators is 'nothing'"),
        (lambda store: normtune.show_map(7), "the measurements are a int"),
        (lambda store: normtune.show_map(store, regime="warm"), "the store has no times of regime warm, but of cold"),
        (lambda store: normtune.show_map(store, dtypes=3), "dtypes is 3"),
    ],
)
def test_a_bad_value_is_told_in_one_line(store: str, call, says: str) -> None:
    with one_line(UsageError, says):
        call(store)
