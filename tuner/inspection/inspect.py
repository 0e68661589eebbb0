"""Inspects operators without a GPU: their launches and their faults.

In: a file that registers operators, an architecture. Out: an `Inspection` of each operator. Its launches are recorded,
its gate runs in Triton's interpreter at three shapes, binaries are compiled, knobs tried, the reference called.
"""

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from normtune.errors import UsageError
from normtune.kernels.call import is_foreign
from normtune.kernels.config import Config, Implementation
from normtune.kernels.config_space import Drawn, some_of, space_of, spread
from normtune.kernels.load_file import load, loaded
from normtune.kernels.operator import OperatorSpec, operator, operators
from normtune.kernels.problem import IN_OUT, INPUT, OUTPUT, WEIGHT, Problem
from normtune.kernels.spec_faults import OperatorError
from normtune.kernels.target import TARGETS, Target, target_for
from normtune.tuner.compiling.compiler import Compiled
from normtune.tuner.compiling.pool import compile_all
from normtune.tuner.inspection.gate import LIMIT_SECONDS, GateCase, InterpreterGate
from normtune.tuner.plan.binaries import jobs_of
from normtune.tuner.plan.plan import LARGE, some_candidates
from normtune.tuner.plan.pool import Candidate

# The tried lengths of a row: shapes given by expressions may need others.
_HIDDEN = (37, 100, 96, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
# The tried numbers of rows with their lengths, the first ones first. Rows of odd numbers and lengths show what is not
# masked. 16 rows show a grid that happens to cover 13 and 7; long rows in float16 show errors that short ones hide:
# kernels that round on the way pass at 7 x 100 with up to 0.97 times the allowed error, and exceed it at 16 x 4096.
_SHAPES = ((13, _HIDDEN), (7, _HIDDEN), (16, (4096, *reversed(_HIDDEN[:8]), 8192, 16384)))
# A shape at which knobs of large problems have an effect.
_LARGE = (4096, 8192)
# Dtypes in which the interpreter calculates as a GPU does: it truncates bfloat16.
_EXACT = ("float32", "float16")
_GATED = 4
_COMPILED = 6
_FEW_JOBS = 12
_KNOB_CONFIGS = 128
_DIGITS = re.compile(r"[\d.e+]+")
# Hints for reasons of the gate with these words.
_HINTS = {
    "elements are NaN or unwritten": "does the grid cover all of them, and does the kernel store to this output?",
    "is an input and was written": "is it in-out, or swapped with an output?",
}


@dataclass
class Inspection:
    """The findings about one operator.

    Attributes:
        operator: its name.
        target: architecture.
        lines: lines of a title and a text each.
        faults: a line for each fault, which prevents a sweep or makes its results wrong.
        warnings: a line for each probable mistake.
        unchecked: the launches that the gate did not reach before its limit of CPU time.
        exit_code: 0 without faults; 2 if a function of the operator is at fault, 1 if the gate or the compiler refuses.
    """

    operator: str
    target: str
    lines: list[tuple[str, str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unchecked: int = 0
    exit_code: int = 0

    def fault(self, text: str, exit_code: int = 1, at: str = "") -> None:
        """Note a fault and its place, unless a fault that differs only in figures was noted before."""
        if not any(_DIGITS.sub("", one).startswith(_DIGITS.sub("", text)) for one in self.faults):
            self.faults.append(f"{text}, for {at}" if at else text)
        self.exit_code = max(self.exit_code, exit_code)


def inspect_operator(file: str | os.PathLike[str], *, operator: str = "", target: str = "sm_90") -> list[Inspection]:
    """Inspect the operators of a file without a GPU.

    Args:
        file: registers operators, as for `--load`.
        operator: name of the operator; empty for all of the file.
        target: architecture to compile for, `sm_90` or `gfx942`.

    Raises:
        UsageError: the file cannot be run, has a faulty declaration or lacks this operator, or the target is unknown.
    """
    return [*inspections(file, operator, target)]


def inspections(
    file: str | os.PathLike[str], operator: str, target: str, announce: Callable[[str], None] = lambda _: None
) -> Iterator[Inspection]:
    """The same as `inspect_operator`, each operator as soon as it is done; `announce` gets lines of what is running.

    Raises:
        UsageError: as `inspect_operator`.
    """
    limits = target_for(target, TARGETS[target].sms if target in TARGETS else TARGETS["sm_90"].sms)
    files = dict.fromkeys([*loaded(), str(Path(file).resolve())])
    with InterpreterGate([*files], limits) as gate, ThreadPoolExecutor(1) as thread:
        looks = [_looked_at(name, limits) for name in _names(file, operator)]
        cases = [_cases(look) for look in looks]
        gate.begin([case for one in cases for case in one])
        compiled = [Future[None]() for _ in looks]
        thread.submit(_compile, looks, limits, compiled)
        for look, of_gate, done in zip(looks, cases, compiled, strict=True):
            inspection = look.inspection
            if of_gate:
                announce(f"{inspection.operator}: {len(of_gate)} launches in Triton's interpreter")
                _gate(look, of_gate, gate)
            if not done.done():
                announce(f"{inspection.operator}: compiling for {target}")
            done.result()
            yield inspection


def _names(file: str | os.PathLike[str], only: str) -> list[str]:
    """The operators of a file, each with the first of its named integers; with `only` that one alone."""
    before = set(operators())
    load(file)
    names = [name for name in operators() if name not in before]
    modules = {name for name, module in sys.modules.items() if getattr(module, "__file__", None) in loaded()}
    names = names or [name for name, spec in operators().items() if spec.kernel_calls.partition(":")[0] in modules]
    if only:
        expected = sorted({name.partition(".")[0] for name in names})
        names = [name for name in names if name == only or name.partition(".")[0] == only]
        if not names:
            raise UsageError(f"{os.fspath(file)} has no operator {only!r}: expected one of {', '.join(expected)}")
    return [*{name.partition(".")[0]: name for name in reversed(names)}.values()][::-1]


class _Look(NamedTuple):
    """The findings about an operator, and the tried problems with their candidates; none after a fault."""

    inspection: Inspection
    problems: list[tuple[Problem, list[Candidate]]]


def _looked_at(name: str, target: Target) -> _Look:
    spec = operator(name)
    inspection = Inspection(name, target.name)
    try:
        problems = _problems_of(spec, target, inspection)
        if problems:
            _describe(spec, problems, inspection)
            _look_at_reference(spec, problems[0][0], inspection)
            _try_knobs(spec, [problem for problem, _ in problems[:2]], target, inspection)
        return _Look(inspection, problems)
    except OperatorError as error:
        inspection.fault(str(error), error.exit_code)
        return _Look(inspection, [])


def _problems_of(spec: OperatorSpec, target: Target, inspection: Inspection) -> list[tuple[Problem, list[Candidate]]]:
    """A problem of each of `_SHAPES` that is possible, with its candidates.

    They are in dtypes in which the interpreter is exact if the operator has one: the last one in float16 if possible.
    """
    dtypes = [dtype for dtype in _EXACT if dtype in spec.dtypes] or list(spec.dtypes[:1])
    problems: list[tuple[Problem, list[Candidate]]] = []
    reasons: Counter[str] = Counter()
    for number, (rows, lengths) in enumerate(_SHAPES):
        dtype = dtypes[min(number, 1) % len(dtypes)]
        before = [problem.hidden for problem, _ in problems]
        for hidden in lengths:
            if hidden > spec.max_hidden or hidden in before:
                continue
            problem = spec.problem(rows, hidden, dtype)
            candidates, pool = some_candidates("default", problem, target)
            reasons.update(pool.pruned)
            if any(not isinstance(one.config, Implementation) for one in candidates):
                if not problems and (not pool.is_listed or pool.size > LARGE):
                    whole = f"{pool.size} configs" if pool.is_listed else "configs that a function draws"
                    inspection.lines.append(("space", f"{whole}, of which a sample is inspected"))
                problems.append((problem, candidates))
                break
    if not problems:
        reason = reasons.most_common(1)[0][0] if reasons else "its space is empty"
        inspection.fault(f"no config can run any of the tried shapes: {reason}")
    return problems


def _describe(spec: OperatorSpec, problems: Sequence[tuple[Problem, list[Candidate]]], inspection: Inspection) -> None:
    problem, candidates = problems[0]
    config, launch = candidates[0]
    inspection.lines.append(("problem", f"{problem}, {spec.bytes_moved(problem)} bytes moved"))
    inspection.lines.append(("configs", f"{len(candidates)} with different launches; {config}:"))
    calls = getattr(launch, "calls", None)
    if calls is None:
        inspection.lines.append(("launch", str(launch)))
        return
    for ((module, kernel), grid, parameters), (*_, kinds) in zip(calls, launch.binary, strict=True):
        arguments = ", ".join(_argument(name, value, dict(kinds)[name]) for name, value in parameters)
        inspection.lines.append(("launch", f"{module}.{kernel}[{', '.join(map(str, grid))}]({arguments})"))
    if is_foreign(launch):
        text = ", ".join(launch.operations) or "none"  # type: ignore[attr-defined]
        inspection.lines.append(
            ("timed", f"the whole function, as it allocates or calls torch; operations of torch: {text}")
        )
    _look_for_tensors(spec, problem, launch, inspection)


def _argument(name: str, value: Any, kind: Any) -> str:
    """An argument of a kernel as text, with the property that the binary is specialised on."""
    tensor, dtype, *view = value
    if view or kind == dtype:
        alignment = " unaligned" if "unaligned" in kind else ""
        shape = f" {view[0]}" if view else ""
        return f"{name}={tensor or 'a new tensor'}: {dtype}{shape}{alignment}"
    if isinstance(kind, str):
        return f"{name}={dtype}"
    if isinstance(kind, tuple) and len(kind) == 2:
        return f"{name}={dtype} constant"
    is_one, is_multiple = (False, False) if isinstance(kind, bool) else kind[1:]
    return f"{name}={dtype} {'itself' if is_one else 'as a multiple of 16' if is_multiple else 'any'}"


def _look_for_tensors(spec: OperatorSpec, problem: Problem, launch: Any, inspection: Inspection) -> None:
    """Report tensors that are passed to no kernel, and outputs that are passed to several."""
    uses = Counter(value[0] for *_, arguments in launch.calls for _, value in arguments if len(value) > 1)
    returned = spec.declaration.returned if hasattr(spec, "declaration") else ()
    for buffer in spec.buffers(problem):
        if buffer.name in returned or launch.operations:
            continue
        if not uses[buffer.name] and buffer.role in (OUTPUT, IN_OUT):
            inspection.fault(
                f"the output {buffer.name} is passed to no kernel: pass it, or if the function allocates it, return it "
                "and remove the parameter"
            )
        elif not uses[buffer.name] and buffer.role in (INPUT, WEIGHT):
            inspection.warnings.append(f"{buffer.name} is passed to no kernel: pass it, or leave it out of buffers")
        elif buffer.role == OUTPUT and uses[buffer.name] > 1:
            inspection.warnings.append(
                f"the output {buffer.name} is passed to {uses[buffer.name]} kernels: right if the later ones read it; "
                "if they overwrite it, the first are timed in vain"
            )


def _look_at_reference(spec: OperatorSpec, problem: Problem, inspection: Inspection) -> None:
    import torch

    from normtune.tuner.timing.gate import inputs_of, reference_of

    generator = torch.Generator().manual_seed(0)
    tensors = inputs_of(spec, problem, generator, torch.device("cpu"), True)
    expected = reference_of(spec, problem, tensors)
    of_short = getattr(spec.references(), "returned", None)
    outputs = []
    for name, (value, _) in expected.items():
        outputs.append(f"{name} {tuple(value.shape)}")
        if not bool(value.isfinite().all()):
            inspection.warnings.append(f"the reference gives {name} infinite or NaN values, which no kernel can match")
    inspection.lines.append(("reference", ", ".join(outputs)))
    declared = getattr(spec, "declaration", None)
    if of_short and declared and "dtype" not in declared.reference_wants:
        for buffer, value in of_short(problem, tensors, **spec.scalars):
            dtype = str(getattr(value, "dtype", torch.float64)).rpartition(".")[2]
            if dtype in ("bfloat16", "float16", "float32"):
                inspection.warnings.append(
                    f"the reference returns {buffer.name} in {dtype}: expected float64, like its inputs, or its own "
                    "roundings count as errors of the kernel"
                )


def _try_knobs(spec: OperatorSpec, problems: Sequence[Problem], target: Target, inspection: Inspection) -> None:
    """Report knobs whose values all give the same launches."""
    large = problems[0]._replace(rows=_LARGE[0], hidden=min(_LARGE[1], spec.max_hidden))
    space = space_of(spec.space_at("full", problems[0], target))
    configs = some_of(space, LARGE)
    for index, name in enumerate(spec.config._fields):
        values = sorted({config[index] for config in configs})
        groups = [[one._replace(**{name: value}) for value in values] for one in spread(configs, _KNOB_CONFIGS)]
        inside = [[one for one in group if isinstance(space, Drawn) or one in space] for group in groups]
        if len(values) > 1 and _is_idle(spec, inside, (*problems, large), target):
            inspection.warnings.append(
                f"the knob {name} changes no launch: pass it to the kernel, or leave it out of the config"
            )


def _is_idle(
    spec: OperatorSpec, groups: Sequence[Sequence[Config]], problems: Sequence[Problem], target: Target
) -> bool:
    """Whether all configs of each group have the same launch, and some group has two configs."""
    launches = (
        {spec.launch_of(config, problem, target) for config in group} - {None}
        for group in groups
        for problem in problems
    )
    return any(len(group) > 1 for group in groups) and all(len(different) < 2 for different in launches)


def _cases(look: _Look) -> list[GateCase]:
    """The launches that the gate checks; of the last problem two, as interpreting its many elements takes long."""
    if look.problems and (dtype := look.problems[0][0].dtype) not in _EXACT:
        look.inspection.warnings.append(f"results in {dtype} are not checked: Triton's interpreter truncates them")
        return []
    cases = []
    for number, (problem, candidates) in enumerate(look.problems):
        is_long = number == 2
        kernels = [one.config for one in candidates if not isinstance(one.config, Implementation)]
        others = [one.config for one in candidates if isinstance(one.config, Implementation)]
        chosen = spread(kernels, 2) if is_long else [*spread(kernels, _GATED), *others]
        cases += [GateCase(problem, config, 1 if is_long else 2) for config in chosen]
    return cases


def _gate(look: _Look, cases: Sequence[GateCase], gate: InterpreterGate) -> None:
    """Report the results of an operator's gate."""
    inspection, right = look.inspection, 0
    for problem, config, _ in cases:
        reason, code, repeats, is_checked = gate.result()
        inspection.unchecked += not is_checked
        right += is_checked and not reason
        inspection.warnings += [text for text in repeats if text not in inspection.warnings]
        if reason:
            hint = "".join(f": {text}" for words, text in _HINTS.items() if words in reason)
            inspection.fault(f"{reason}{hint}", code, at="" if code == 2 else f"{config} at {problem}")
    at = ", ".join(f"{problem.rows} x {problem.hidden} in {problem.dtype}" for problem, _ in look.problems)
    text = f"{right} of {len(cases)} launches are right in Triton's interpreter, at {at}"
    if inspection.unchecked:
        text += f"; {inspection.unchecked} were not checked: they take over {LIMIT_SECONDS} s of CPU time"
    inspection.lines.append(("gate", text))


def _compile(looks: Sequence[_Look], target: Target, done: Sequence[Future[None]]) -> None:
    """Compile a few candidates of each operator, in which the values of its knobs occur; `done` has one of each."""
    chosen = {
        (problem.operator, one.launch.binary): (number, problem, one)
        for number, look in enumerate(looks)
        for problem, candidates in look.problems[:1]
        for one in _of_each_value(candidates)
    }
    remaining = Counter(number for number, _, _ in chosen.values())
    try:
        jobs = jobs_of((problem, one.launch) for _, problem, one in chosen.values())
        for number, future in enumerate(done):
            if not remaining[number]:
                future.set_result(None)
        # Each process imports what the file imports: torch takes 5 s of CPU time, as much as a dozen of jobs.
        workers = 1 if len(jobs) <= _FEW_JOBS else None
        for result in compile_all(jobs, target.name, workers, keep_assembly=True) if jobs else ():
            number, _, one = chosen[result.job.problem.operator, result.job.launch.binary]
            _report(result, one.config, target, looks[number].inspection)
            remaining[number] -= 1
            if not remaining[number]:
                done[number].set_result(None)
    except BaseException as error:
        for future in done:
            if not future.done():
                future.set_exception(error)


def _report(result: Compiled, config: Config, target: Target, inspection: Inspection) -> None:
    if result.status != "ok":
        inspection.fault(f"does not compile for {target.name}: {result.reason or result.status}", at=str(config))
    for kernel, argument, effect in result.promoted:
        text = (
            f"{kernel} {effect} where torch.compile sees its launch, as Inductor passes the float {argument} as fp64: "
            f"make it tl.constexpr, or begin the kernel with {argument} = {argument}.to(tl.float32)"
        )
        inspection.warnings += [text] if text not in inspection.warnings else []
    _, excess = result.on(target)
    for used in result.resources:
        text = f"{used.registers} registers, {used.spilled_bytes} bytes spilled, {used.shared_bytes} bytes shared"
        text += f"; a sweep drops it: {excess}" if excess else ""
        inspection.lines.append(("compiled", f"{used.kernel} with {config}: {text}"))


def _of_each_value(candidates: Sequence[Candidate]) -> list[Candidate]:
    values: set[tuple[int, Any]] = set()
    chosen = []
    for one in candidates:
        if not isinstance(one.config, Implementation) and {*enumerate(one.config)} - values:
            chosen.append(one)
            values |= {*enumerate(one.config)}
    return chosen[:_COMPILED]
