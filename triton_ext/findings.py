"""What was found in a program, for machines: GitHub's annotations, and SARIF 2.1.0.

A `Finding` is a fault that the emulator caught, or what a compiler pass says of a kernel. Errors
that are findings are `triton_ext.errors.Fault`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from triton_ext._version import __version__

SARIF_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
"""The schema of SARIF 2.1.0 (OASIS, with errata 01)."""
_ROOT = "%SRCROOT%"
"""The name of the folder that paths are relative to, which GitHub takes for the repository's."""

Level = Literal["error", "warning", "remark"]


@dataclass(frozen=True)
class SourceLocation:
    """A line of a file; `line` and `column` count from 1, and are 0 if they are not known."""

    file: str
    line: int = 0
    column: int = 0


@dataclass(frozen=True)
class Finding:
    """Something that was found in a program.

    Attributes:
        rule: the kind of fault, or the name of the pass, such as ``SynchronizationFault``.
        about: what the rule is for, in a line.
        level: an error, a warning or a remark.
        message: what is wrong.
        location: the line that is to blame; None if it is not known.
        related: other lines that belong to it, each with what it has to do with it.
    """

    rule: str
    about: str
    level: Level
    message: str
    location: SourceLocation | None = None
    related: tuple[tuple[str, SourceLocation], ...] = ()


def _root() -> Path:
    """The folder that paths are relative to: the repository's on GitHub, else the current one."""
    return Path(os.environ.get("GITHUB_WORKSPACE") or os.curdir).absolute()


def _relative(file: str, root: Path) -> Path:
    """The path from `root`, if the file lies in it; else the whole path."""
    for written in (os.path.abspath, os.path.realpath):  # a link in it may lead out of it
        path, folder = Path(written(file)), Path(written(root))
        if path.is_relative_to(folder):
            return path.relative_to(folder)
    return path


# ------------------------------------------------------------------------ GitHub


_DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = _DATA | {":": "%3A", ",": "%2C"}
_COMMANDS: dict[Level, str] = {"error": "error", "warning": "warning", "remark": "notice"}


def _escaped(text: object, table: dict[str, str]) -> str:
    return "".join(table.get(character, character) for character in str(text))


def github_annotation(finding: Finding) -> str:
    """The workflow command that shows a finding at its line.

    From GitHub's "Workflow commands for GitHub Actions", "Setting an error message"; a path is
    relative to ``GITHUB_WORKSPACE``, if the file lies there.
    """
    properties: dict[str, object] = {"title": finding.rule}
    if finding.location is not None:
        location = finding.location
        found = {"line": location.line, "col": location.column}
        properties["file"] = _relative(location.file, _root()).as_posix()
        properties |= {name: value for name, value in found.items() if value}
    said = ",".join(f"{name}={_escaped(value, _PROPERTY)}" for name, value in properties.items())
    return f"::{_COMMANDS[finding.level]} {said}::{_escaped(finding.message, _DATA)}"


def on_github() -> bool:
    """Whether this is a job of GitHub Actions, which reads annotations from what is printed."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def annotate(findings: Iterable[Finding]) -> None:
    """In a job of GitHub Actions, print an annotation of each finding on stderr."""
    if on_github() and sys.stderr is not None:
        for finding in findings:
            print(github_annotation(finding), file=sys.stderr)


# ------------------------------------------------------------------------ SARIF


_LEVELS: dict[Level, str] = {"error": "error", "warning": "warning", "remark": "note"}


def _location(location: SourceLocation, root: Path) -> dict[str, Any]:
    """A ``location`` (SARIF 2.1.0, section 3.28)."""
    path = _relative(location.file, root)
    artifact = {"uri": path.as_uri()} if path.is_absolute() else {
        "uri": quote(path.as_posix()), "uriBaseId": _ROOT
    }  # fmt: skip
    physical: dict[str, Any] = {"artifactLocation": artifact}
    if location.line:
        physical["region"] = {"startLine": location.line}
        if location.column:
            physical["region"]["startColumn"] = location.column
    return {"physicalLocation": physical}


def _result(finding: Finding, rules: Sequence[str], root: Path) -> dict[str, Any]:
    """A ``result`` (SARIF 2.1.0, section 3.27)."""
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rules.index(finding.rule),
        "level": _LEVELS[finding.level],
        "message": {"text": finding.message},
    }
    if finding.location is not None:
        result["locations"] = [_location(finding.location, root)]
    if finding.related:
        result["relatedLocations"] = [
            {"id": number, "message": {"text": text}, **_location(location, root)}
            for number, (text, location) in enumerate(finding.related)
        ]
    return result


def sarif(findings: Iterable[Finding], *, completed: bool = True) -> dict[str, Any]:
    """A SARIF log of one run, as a JSON object.

    Paths are relative to ``GITHUB_WORKSPACE``, if the variable is set, or to the current folder;
    files outside of it have their whole path.

    Args:
        findings: what was found, each once.
        completed: whether the program that was looked at ran to its end, or to a finding.
    """
    root, found = _root(), list(dict.fromkeys(findings))
    rules = {finding.rule: finding.about for finding in found}
    driver = {
        "name": "triton-ext",
        "version": __version__,
        "rules": [{"id": rule, "shortDescription": {"text": rules[rule]}} for rule in rules],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT: {"uri": f"{root.as_uri().rstrip('/')}/"}},
        "invocations": [{"executionSuccessful": completed}],
        "results": [_result(finding, list(rules), root) for finding in found],
    }
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
