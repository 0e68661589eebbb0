"""Pages and pictures of what was measured, and of what tables choose, from Python.

In: measurements, and tables or rules. Out: `Report`, which is saved as a page or drawn chart by chart. `report` makes
the data of charts; nothing is printed.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from normtune.errors import UsageError
from normtune.heuristics.comparing.contenders import Side, side
from normtune.heuristics.comparing.difference import difference
from normtune.heuristics.comparing.report import verdict_lines
from normtune.heuristics.fitting import baseline as baselines
from normtune.heuristics.fitting import figures
from normtune.heuristics.fitting.baseline import DEFAULT_RULE, Incumbents
from normtune.heuristics.fitting.figures import Figures
from normtune.heuristics.fitting.in_use import Compared, InUse
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.fitting.result import Fit
from normtune.heuristics.regret.build import matrices_of, outdated
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.regret.specs import spec_of
from normtune.heuristics.report import images
from normtune.heuristics.report.function_data import DeviceReport, function_data
from normtune.heuristics.report.notebook import html_with_charts
from normtune.heuristics.rules import RULES
from normtune.heuristics.writing import named_files
from normtune.heuristics.writing.entries import decisions, regions_of
from normtune.heuristics.writing.regenerate import command_of
from normtune.heuristics.writing.report import verdict_rows
from normtune.heuristics.writing.write import check_text
from normtune.kernels.arguments import checked
from normtune.kernels.config import Config, Implementation
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Problem, axes_of, function_key
from normtune.kernels.tablefile.header import Header
from normtune.kernels.tablefile.loaded import LoadedTable
from normtune.kernels.tablefile.locate import load_table, quoted
from normtune.kernels.tablefile.tree import Tree, choose, distinct, leaves
from normtune.kernels.target import Target
from normtune.results.atomic import replaced
from normtune.results.evidence import Evidence
from normtune.results.options import as_names, keywords_of, option
from normtune.results.records import UNKNOWN_START, Device
from normtune.results.source import NOTHING, Measured, Selection, data_option

if TYPE_CHECKING:
    from normtune.heuristics.report.theme import Spec

Announce = Callable[[str], None]
_FITTED = "fitted table"


@dataclass(frozen=True)
class Report:
    """A report, ready to be drawn.

    Attributes:
        title: of the page.
        devices: what it has of each device.
    """

    title: str
    devices: tuple[DeviceReport, ...]

    def page(self) -> str:
        """The page, one HTML file that needs no network."""
        from normtune.heuristics.report.page import page

        return page(self.title, self.devices)

    @checked
    def save(self, path: str | os.PathLike[str], force: bool = False) -> None:
        """Write the page, as `normtune report --out` does.

        Args:
            path: of the file; one that normtune wrote there before is replaced.
            force: whether to replace a file that normtune did not write.

        Raises:
            UsageError: the file cannot be written there, or should not be replaced.
            NormtuneError: writing failed.
        """
        check_page(Path(path), force)
        with replaced(Path(path)) as file:
            file.write_text(self.page(), encoding="utf-8")

    @checked
    def plot(
        self, path: str | os.PathLike[str], what: str = "map", against: str | None = None, at: int | None = None
    ) -> None:
        """Draw one chart of the only operator and dtype of the report, as `normtune plot` does.

        Args:
            path: of the picture, which ends with .png, .svg or .pdf; a file there is replaced.
            what: `map`, `faster`, `copy`, `loss`, `fastest`, `ties` or `measured`.
            against: the table or rule of `faster`. Default: the first.
            at: the size of the third axis, where there is one. Default: the middle one that was measured.

        Raises:
            UsageError: there are several operators and dtypes, or a value is unknown.
            NormtuneError: writing failed.
        """
        from normtune.heuristics.report.pictures import of_function

        images.check_format(Path(path))
        functions = [(part, function) for part in self.devices for function in part.functions]
        # An operator is measured with its variants, which are named by `:` and their words.
        functions = [pair for pair in functions if ":" not in pair[1].title] or functions
        if len(functions) > 1:
            several = "; ".join(function.title for _, function in functions)
            raise UsageError(f"a picture is of one operator and dtype, choose by --operator and --dtype: {several}")
        ((part, function),) = functions
        spec = of_function(function, what, against, at, part.label.partition(",")[0])
        with replaced(Path(path)) as file:
            file.write_bytes(images.picture(spec, Path(path).suffix))

    def _repr_html_(self) -> str:
        """The verdict, and the maps as pictures."""
        return html_with_charts(self._lines(), self.maps)

    def maps(self) -> "Iterator[tuple[str, Spec]]":
        """The map of each function with its title."""
        from normtune.heuristics.report.pictures import of_function

        for function in (function for part in self.devices for function in part.functions):
            yield function.title, of_function(function, "map", None, None, "")

    def _lines(self) -> Iterator[str]:
        for part in self.devices:
            yield part.label
            for function in part.functions:
                yield from ("", function.title, *(f"  {label:<9} {text}" for label, text in function.verdict))


def check_page(path: Path, force: bool = False) -> None:
    """Raise `UsageError` if a page cannot be written to this path, or should not be."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"the page is {quoted(str(path))}: expected a file that ends with .html")
    check_text(path, force)


@dataclass(frozen=True)
class ReportRequest(Selection):
    """Arguments of `report`."""

    tables: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = option(
        "Tables or rules, each a file, a shipped table (nvidia-h200) or a rule (liger): what the report is about, and "
        "what it is compared with. Default: fit a table to the measurements.",
        default=(),
    )
    data: Measured = data_option()
    _: KW_ONLY


@keywords_of(ReportRequest)
def report(request: ReportRequest) -> Report:
    """Make a report of measurements and tables, as `normtune report` does.

    Without data a table is shown with the measurements that its command names.

    Raises:
        UsageError: a name is no table or rule, or nothing was measured of what is asked for.
        NormtuneError: the packages of `normtune[report]` are not installed, or the data cannot be read.
    """
    return reported(request)


def reported(request: ReportRequest, announce: Announce = lambda line: None) -> Report:
    """As `report`; `announce` takes a line before slow work."""
    images.check_extra()
    tables = (request.tables,) if isinstance(request.tables, str | os.PathLike) else request.tables
    names = as_names("tables", tuple(os.fspath(name) for name in tables))
    short = [Path(name).name for name in names]
    sides, table = [side(name) for name in names], None
    if len({*short}) == len(short):  # a page is shown to others: where a table lies is left out
        sides = [one._replace(name=quoted(name)) for one, name in zip(sides, short, strict=True)]
    if sides and names[0] in RULES:
        raise UsageError(f"{names[0]} is a rule: name the table that the report is about before it")
    if sides:
        table = load_table(names[0])
    evidence = named_files.selected(request, request.data, table)
    if evidence.frame.empty:
        raise UsageError(NOTHING)
    devices = tuple(_on(evidence.of(device), device, sides, table, announce) for device in evidence.devices())
    devices = tuple(part for part in devices if part.functions)
    if not devices:
        raise UsageError(f"{names[0] if names else 'the store'}: no function was measured, so there is nothing to show")
    subject, places = (one.name for one in sides), (part.label.partition(",")[0] for part in devices)
    title = f"{' and '.join(subject) or _FITTED} on {' and '.join(places)}"
    return Report(title, devices)


def of_fit(fit: Fit, evidence: Evidence) -> Report:
    """The report of a fitted table."""
    part = _of_fit(evidence, fit)
    return Report(f"{_FITTED} on {fit.device.label}", (part,))


def _on(
    part: Evidence, device: Device, sides: Sequence[Side], table: LoadedTable | None, announce: Announce
) -> DeviceReport:
    if table is None:
        options = FitOptions(regime=part.regimes()[0])
        announce(f"fitting {len(part.frame)} measurements; a TABLE is shown at once")
        return _of_fit(part, fit(part, options))
    fit_figures = {key: entry.figures for key, entry in decisions(table.header).items()}
    in_use = InUse(_baseline(table.header), "", device, device.as_target())
    notes = [f"A is {sides[0].name}, B is {other.name}" for other in sides[1:]]
    return _device(part, device, sides, fit_figures, in_use.compared, (*table.header.searched, *notes))


def _of_fit(part: Evidence, fit: Fit) -> DeviceReport:
    trees = {key: function.tree for function in fit.functions for key in function.served}
    trees |= {share.key: trees[share.donor] for share in fit.shared}

    def answer(problem: Problem, target: Target) -> Config | None:
        tree = trees.get(function_key(problem.key))
        return None if tree is None else choose(tree, problem.function_shape, axes_of(problem.key.family))

    def compared(spec: OperatorSpec, matrix: TimingMatrix, tree: Tree) -> Compared:
        return fit.compared[matrix.key]

    sides = [Side(_FITTED, answer, trees.get)]
    return _device(part, fit.device, sides, fit.with_data(), compared, (*fit.notes, *fit.searched))


def _device(
    part: Evidence,
    device: Device,
    sides: Sequence[Side],
    fit_figures: Mapping[Key, Figures],
    compared: Callable[[OperatorSpec, TimingMatrix, Tree], Compared],
    notes: Sequence[str],
) -> DeviceReport:
    """The report of one device: of each of its functions that the first side answers.

    `fit_figures` are the figures of a fit, and `compared` compares a tree with what is launched without it.
    """
    current, target = part.current(), device.as_target()
    matrices, left_out = matrices_of(current, device, current.function_keys())
    all_notes, functions = [*dict.fromkeys((*notes, *outdated(part, current), *left_out))], []
    for matrix in matrices:
        key, spec = matrix.key, spec_of(current, matrix.key.operator)
        tree = sides[0].tree(key)
        if tree is None:
            all_notes.append(f"{sides[0].name} has no function for {key}")
            continue
        rows = [("", f"no measured shape has a time of its config, of {len(matrix.problems)}")]
        if loss := figures.of_tree(matrix, tree):
            numbers = fit_figures.get(key) or Figures(leaves(tree), leaves(tree), len(distinct(tree)), loss, 0)
            numbers = numbers._replace(leaves=leaves(tree), loss=loss)
            rows = [("", f"{regions_of(numbers)} of shapes"), *verdict_rows(numbers, compared(spec, matrix, tree))]
            for other in sides[1:]:
                lines = verdict_lines(difference(spec, matrix, target, sides[0], other), device.l2_bytes)
                first, *rest = map(str.strip, lines)
                rows += [("A and B", first.partition(": ")[2]), *(("", line) for line in rest)]
        functions.append(function_data(spec, matrix, target, sides, _rivals(spec), rows))
    newest = current.runs[-1].started if current.runs else UNKNOWN_START
    date = "" if newest == UNKNOWN_START else f", {newest[:10]}"
    label = f"{device.label}, {device.target}, {device.sms} SMs: {len(current.frame)} measurements{date}"
    return DeviceReport(label, tuple(functions), tuple(all_notes))


def _rivals(spec: OperatorSpec) -> list[Side]:
    """Rules of other libraries, the default config if somebody declared it, and other implementations."""

    def always(config: Config) -> Callable[[Problem, Target], Config]:
        return lambda problem, target: config

    default = [Side(DEFAULT_RULE.title, spec.default_config)] if spec.kernel_calls else []
    return [*map(side, RULES), *default, *(Side(name, always(Implementation(name))) for name in spec.implementations)]


def _baseline(header: Header) -> Incumbents | None:
    """The baseline of a table's fit if it is a rule; the files of others are theirs."""
    name = command_of(header).fit_options().baseline
    return baselines.baseline(name, Path()) if name in baselines.NAMES else None
