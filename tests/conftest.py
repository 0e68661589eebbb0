"""Shared by all tests: recordings and Triton's interpreter without repeated work, an interrupt that arrives, examples.

Examples of Hypothesis are the same in each run, so that a change is judged by what it changed. `make test-all` draws
others each time (`--hypothesis-profile random`).
"""

import functools
import gc
import os
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes is the machine's affair.
SLOW_MACHINE = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("random", print_blob=True, **SLOW_MACHINE)
settings.register_profile("same", derandomize=True, max_examples=40, **SLOW_MACHINE)
settings.load_profile("same")

# Tests know no store, table or terminal of the machine on which they run.
for name in ("NORMTUNE_STORE", "NORMTUNE_TABLE", "FORCE_COLOR", "COLUMNS"):
    os.environ.pop(name, None)

# A shell that starts the tests in the background lets them, and all that they start, ignore it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects tests without looking for garbage, of which there is none: it takes a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # what is loaded now stays
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All cases are slow but every n-th of `one_in(n)`, and every third of an interpreted test with over six."""
    seen: Counter[str] = Counter()
    cases = Counter(_place(item) for item in items)
    for item in items:
        place = _place(item)
        mark = item.get_closest_marker("one_in")
        is_one_of_many = item.get_closest_marker("interpreter") is not None and cases[place] > 6
        every = mark.args[0] if mark else 3 if is_one_of_many else 1
        if seen[place] % every:
            item.add_marker(pytest.mark.slow)
        seen[place] += 1


def _place(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


@pytest.fixture(scope="session", autouse=True)
def compilers_have_time() -> Iterator[None]:
    """Gives compilers longer than `COMPILE_SECONDS`, which a binary of 6 seconds exceeds on a busy machine."""
    from normtune.tests.commands import PATIENCE
    from normtune.tuner.compiling import pool

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "COMPILE_SECONDS", PATIENCE)
        yield


@pytest.fixture(scope="session", autouse=True)
def language_replaced_once_a_launch() -> Iterator[None]:
    """Replaces the functions of `triton.language` when a kernel is launched, not again in each function that it calls.

    Triton 3.7 does it for every call of `tl.cdiv`, too, which takes half of the time of an interpreted kernel.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    import triton.language as tl
    from triton.runtime import interpreter

    replace = interpreter._patch_lang
    both = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})

    def called(function: Any, *arguments: Any, **options: Any) -> Any:
        return function.rewrite()(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", lambda kernel: replace(both))
        patch.setattr(interpreter.InterpretedFunction, "__call__", called)
        yield


@pytest.fixture(scope="session", autouse=True)
def recordings_read_once() -> Iterator[None]:
    """A file of a recording that ships is read once a process: the H200's take two thirds of a second."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        yield
        return
    from normtune.results.exchange import recording

    shipped, read = recording.FOLDER, recording.read_parquet
    once = functools.cache(read)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "read_parquet", lambda path: (once if path.parent == shipped else read)(path))
        yield


@pytest.fixture(scope="session", autouse=True)
def folds_solved_once() -> Iterator[None]:
    """Functions of equal data and legality are cross-validated once a process: most of the time of a fit of few shapes.

    Each test makes its measurements anew; those of the toy are equal in 280 of 420 fits.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        yield
        return
    from normtune.heuristics.fitting import function
    from normtune.heuristics.solver.bins import bins

    validate, known = function.cross_validated, {}

    def once(matrix: Any, legality: Any, *limits: Any) -> Any:
        whole = bins(matrix, legality)
        arrays = matrix.regret, matrix.usable, matrix.weights, matrix.excluded, matrix.untimed, whole.cost, whole.legal
        shape = matrix.key, matrix.problems, matrix.configs, whole.axes, legality.launched
        key = shape, limits, tuple(array is not None and array.tobytes() for array in arrays)
        if key not in known:
            known[key] = validate(matrix, legality, *limits)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function, "cross_validated", once)
        yield


@pytest.fixture
def operators_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators that a test registers, and files that it loads for them, are forgotten after it."""
    from normtune.kernels import fingerprint
    from normtune.tests.kernels.registry import forgetting

    fingerprint.forget()  # a file of that name may have been another one
    forgetting(monkeypatch)
