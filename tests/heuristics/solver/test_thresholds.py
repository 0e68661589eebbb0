import pytest
from hypothesis import given
from hypothesis import strategies as st

from normtune.heuristics.solver.grid import axis, count_threshold, length_threshold, middle_half

GAPS = st.tuples(st.integers(1, 2**31), st.integers(1, 2**31)).filter(lambda pair: pair[0] < pair[1])


@given(GAPS)
def test_thresholds_lie_in_the_gap(gap: tuple[int, int]) -> None:
    low, high = gap
    assert low <= length_threshold(low, high) < high
    assert low < count_threshold(low, high) <= high


def is_filled(hidden: int) -> bool:
    return hidden & (hidden - 1) == 0 or hidden % 4096 == 0


@pytest.mark.long
@given(GAPS)
def test_the_gap_beside_a_filled_row_goes_with_the_other_size(gap: tuple[int, int]) -> None:
    low, high = gap
    found = length_threshold(low, high)
    if is_filled(low) != is_filled(high):
        assert found == (low if is_filled(low) else high - 1)
    else:
        exists = any(low <= 1 << bit < high for bit in range(32))
        assert (found & (found - 1) == 0) == exists


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (512, 768, 512),
        (640, 768, 640),
        (768, 1024, 1023),
        (896, 1024, 1023),
        (25600, 28672, 28671),
        (28672, 29568, 28672),
        (24576, 28672, 26624),
        (12288, 12800, 12288),
        (5120, 6144, 5120),
        (12288, 16384, 14336),
        (4096, 8192, 4096),
        (4100, 4200, 4160),
    ],
)
def test_length_thresholds_are_the_roundest(low: int, high: int, expected: int) -> None:
    assert length_threshold(low, high) == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (2048, 4096, 3072),
        (65536, 262144, 131072),
        (101, 119, 110),
        (3000, 6000, 4096),
        (128, 192, 160),
        (1, 2, 2),
        (2, 3, 3),
    ],
)
def test_rows_thresholds_are_the_roundest_of_the_middle(low: int, high: int, expected: int) -> None:
    assert count_threshold(low, high) == expected


@given(GAPS)
def test_row_thresholds_keep_to_the_middle_half(gap: tuple[int, int]) -> None:
    low, high = gap
    found = count_threshold(low, high)
    inside = [low**3 * high <= size**4 <= low * high**3 for size in (found, *middle_half(low, high))]
    # Where no integer lies in the middle half its ends are given the wrong way round.
    assert all(inside) or not any(inside[1:])


@given(st.sets(st.integers(1, 10**6), min_size=1, max_size=12), st.sampled_from(["rows", "hidden"]))
def test_every_measured_size_has_a_bin_of_its_own(sizes: set[int], name: str) -> None:
    bins = axis(name, sizes, 10**6)
    assert [bins.bin(size) for size in sorted(sizes)] == list(range(len(sizes)))
    assert bins.tops[-1] == 10**6
    assert list(bins.tops) == sorted(set(bins.tops))


def test_beyond_the_measured_sizes_the_threshold_is_at_the_last_one() -> None:
    bins = axis("hidden", [64, 1000], 65536)
    assert bins.has_outer_bin
    assert bins.threshold(2) == 1000
    assert bins.without_outer_bin().tops == (bins.tops[0], 65536)
