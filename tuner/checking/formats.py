"""Results of `normtune check` as text, GitHub annotations, JUnit XML or JSON.

In: a `TableResult` for each table. Out: lines, or one document. The command prints them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

from normtune.errors import NormtuneError
from normtune.results.terminal import printable

TEXT, GITHUB, JUNIT, JSON = FORMATS = ("text", "github", "junit", "json")
# Further verdicts, beside those of a check on a device: the check failed, or the file could not be checked.
FAILED, UNUSABLE = "FAILED", "UNUSABLE"
# Limits of the output, because tables may come from anybody.
_MOST_LINES = 20
_MOST_CHARACTERS = 1000


class TableResult(NamedTuple):
    """Result of the check of one table.

    Attributes:
        table: its file, as the user named it.
        verdict: `OK`, `STALE`, `AMBIGUOUS`, `FAILED` or `UNUSABLE`.
        is_failure: whether the exit code is 1 because of this table.
        headline: the verdict in words.
        reasons: groups of lines with reasons why the table is not OK.
        notes: groups of further lines.
        facts: figures as JSON values.
        error: why the file could not be checked.
    """

    table: str
    verdict: str
    is_failure: bool
    headline: str
    reasons: tuple[Sequence[str], ...] = ()
    notes: tuple[Sequence[str], ...] = ()
    facts: dict[str, Any] = {}  # noqa: RUF012 - never changed
    error: NormtuneError | None = None

    def text(self) -> str:
        """The result for people."""
        return "\n".join([self.headline, *(f"  {line}" for line in _limited((*self.reasons, *self.notes)))])

    def annotation(self) -> str:
        """A workflow command of GitHub Actions; empty for a table that is OK.

        Source: docs.github.com, "Workflow commands for GitHub Actions", Setting an error message.
        """
        if self.verdict == "OK":
            return ""
        level = "error" if self.is_failure or self.verdict == UNUSABLE else "warning"
        message = "\n".join([self.headline, *_limited(self.reasons)])
        escaped = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        file = printable(self.table)
        for character, code in (("%", "%25"), (":", "%3A"), (",", "%2C")):
            file = file.replace(character, code)
        return f"::{level} file={file},title=normtune check::{escaped}"

    def to_plain(self) -> dict[str, Any]:
        """The result as JSON values; docs/commands.md describes the keys."""
        return {"table": self.table, "verdict": self.verdict, **self.facts}


def junit(results: Sequence[TableResult]) -> str:
    """A JUnit XML document with a test case for each table."""
    failures = [result for result in results if result.is_failure]
    unusable = [result for result in results if result.verdict == UNUSABLE]
    suite = ElementTree.Element(
        "testsuite",
        name="normtune check",
        tests=str(len(results)),
        failures=str(len(failures)),
        errors=str(len(unusable)),
    )
    for result in results:
        case = ElementTree.SubElement(suite, "testcase", classname="normtune.check", name=printable(result.table))
        text = "\n".join(map(printable, _limited((*result.reasons, *result.notes))))
        if result.is_failure or result.verdict == UNUSABLE:
            kind = "failure" if result.is_failure else "error"
            ElementTree.SubElement(case, kind, message=printable(result.headline)).text = text
        else:
            ElementTree.SubElement(case, "system-out").text = f"{printable(result.headline)}\n{text}"
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)


def _limited(groups: Sequence[Sequence[str]]) -> list[str]:
    """The lines of all groups, with limits on the lines of a group and on their length."""
    lines = []
    for group in groups:
        for line in group[:_MOST_LINES]:
            lines += [part[:_MOST_CHARACTERS] for part in line.split("\n")]
        if len(group) > _MOST_LINES:
            lines.append(f"and {len(group) - _MOST_LINES} more of this kind")
    return lines
