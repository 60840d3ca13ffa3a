"""Findings for machines: GitHub's annotations, and SARIF."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sites import ROOT

from triton_ext.emulator.errors import UninitializedRead
from triton_ext.errors import PassError
from triton_ext.findings import (
    SARIF_SCHEMA,
    Finding,
    SourceLocation,
    annotate,
    github_annotation,
    sarif,
)
from triton_ext.ptx.parse import Instruction, SourceLine

TEXTS = st.text(st.characters(codec="utf-8"))
OTHERS = st.builds(SourceLocation, st.just("other.py"), st.integers(0, 9))
PLACES = st.none() | st.builds(
    SourceLocation,
    st.sampled_from(["kernel.py", "/usr/lib/a b,c:%.py", "src/käse.py"]),
    st.integers(0, 99),
    st.integers(0, 99),
)
FINDINGS = st.builds(
    Finding,
    st.text("abc-", min_size=1),
    st.just("a rule"),
    st.sampled_from(["error", "warning", "remark"]),
    TEXTS,
    PLACES,
    st.lists(st.tuples(TEXTS, OTHERS), max_size=2).map(tuple),
)  # fmt: skip

# What of SARIF 2.1.0 a log of ours has, with the sections that say it; nothing else is legal.
LOCATION = {
    "type": "object", "additionalProperties": False, "required": ["physicalLocation"],
    "properties": {
        "id": {"type": "integer", "minimum": 0},                                     # 3.28.2
        "message": {"$ref": "#/definitions/message"},                                # 3.28.5
        "physicalLocation": {                                                        # 3.29
            "type": "object", "additionalProperties": False, "required": ["artifactLocation"],
            "properties": {
                "artifactLocation": {                                                # 3.4
                    "type": "object", "additionalProperties": False, "required": ["uri"],
                    "properties": {"uri": {"type": "string", "format": "uri-reference",
                                           "pattern": r"^[!-~]+$"},
                                   "uriBaseId": {"const": "%SRCROOT%"}},
                },
                "region": {                                                          # 3.30
                    "type": "object", "additionalProperties": False, "required": ["startLine"],
                    "properties": {"startLine": {"type": "integer", "minimum": 1},
                                   "startColumn": {"type": "integer", "minimum": 1}},
                },
            },
        },
    },
}  # fmt: skip
RESULT = {                                                                           # 3.27
    "type": "object", "additionalProperties": False,
    "required": ["ruleId", "ruleIndex", "level", "message"],
    "properties": {
        "ruleId": {"type": "string"}, "ruleIndex": {"type": "integer", "minimum": 0},
        "level": {"enum": ["error", "warning", "note"]},
        "message": {"$ref": "#/definitions/message"},
        "locations": {"type": "array", "items": LOCATION, "minItems": 1, "maxItems": 1},
        "relatedLocations": {"type": "array", "items": LOCATION, "uniqueItems": True},
    },
}  # fmt: skip
RULE = {"type": "object", "additionalProperties": False, "required": ["id"],         # 3.49
        "properties": {"id": {"type": "string"},
                       "shortDescription": {"$ref": "#/definitions/message"}}}  # fmt: skip
LOG = {                                                                              # 3.13
    "definitions": {"message": {"type": "object", "additionalProperties": False,     # 3.11
                                "required": ["text"],
                                "properties": {"text": {"type": "string"}}}},
    "type": "object", "additionalProperties": False, "required": ["version", "runs"],
    "properties": {
        "$schema": {"type": "string"}, "version": {"const": "2.1.0"},
        "runs": {"type": "array", "minItems": 1, "items": {                          # 3.14
            "type": "object", "additionalProperties": False, "required": ["tool", "results"],
            "properties": {
                "tool": {"type": "object", "required": ["driver"], "properties": {"driver": {
                    "type": "object", "additionalProperties": False, "required": ["name"],
                    "properties": {"name": {"type": "string"}, "version": {"type": "string"},
                                   "rules": {"type": "array", "items": RULE,
                                             "uniqueItems": True}},
                }}},
                "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                "originalUriBaseIds": {"type": "object", "additionalProperties": {
                    "type": "object", "properties": {"uri": {"pattern": "^file:///.*/$"}}}},
                "invocations": {"type": "array", "items": {
                    "type": "object", "required": ["executionSuccessful"],           # 3.20.14
                    "properties": {"executionSuccessful": {"type": "boolean"}}}},
                "results": {"type": "array", "items": RESULT},
            },
        }},
    },
}  # fmt: skip


def checked(log):
    """A log that is legal, its findings as (rule, level, file, line)."""
    jsonschema.validate(log, LOG)
    (run,) = log["runs"]
    rules = [each["id"] for each in run["tool"]["driver"]["rules"]]
    found = []
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        (location,) = result.get("locations", [{}])
        location = location.get("physicalLocation", {"artifactLocation": {"uri": ""}})
        line = location.get("region", {}).get("startLine")
        found.append((result["ruleId"], result["level"], location["artifactLocation"]["uri"], line))
    return found


@given(st.lists(FINDINGS, max_size=4), st.booleans())
def test_sarif_is_legal(findings, completed):
    log = sarif(findings, completed=completed)
    assert len(checked(json.loads(json.dumps(log)))) == len(set(findings))


def test_sarif_by_its_own_schema():
    """The schema that the log names, where it can be had."""
    location = SourceLocation("kernel.py", 3, 5)
    finding = Finding("Rule", "a rule", "remark", "text", location, (("used here", location),))
    log = sarif([finding, Finding("Other", "another", "error", "no location")])
    try:
        with urllib.request.urlopen(SARIF_SCHEMA, timeout=5) as answer:
            schema = json.load(answer)
    except (urllib.error.URLError, OSError):
        pytest.skip("the schema of OASIS cannot be had here")
    assert schema["id"] == SARIF_SCHEMA
    jsonschema.validate(log, schema)


def test_paths_are_those_of_the_repository(monkeypatch, tmp_path):
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    inside, outside = SourceLocation("k.py", 2), SourceLocation("/elsewhere/k.py", 3)
    findings = [Finding("r", "", "error", "m", each) for each in (inside, outside)]
    assert [each[2] for each in checked(sarif(findings))] == ["k.py", "file:///elsewhere/k.py"]
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    assert [each[2] for each in checked(sarif(findings))] == ["sub/k.py", "file:///elsewhere/k.py"]
    assert "file=sub/k.py,line=2::m" in github_annotation(findings[0])
    assert "file=/elsewhere/k.py,line=3::m" in github_annotation(findings[1])


def unescaped(text):
    """As GitHub's runner reads data: the sign itself comes last."""
    for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, character)
    return text


@given(FINDINGS)
def test_annotations_are_read_as_they_were_meant(finding):
    """One line, whatever a message says: what comes from a program is no command of its own."""
    line = github_annotation(finding)
    assert "\n" not in line
    assert "\r" not in line
    match = re.fullmatch(r"::(error|warning|notice) (.*?)::(.*)", line, re.DOTALL)
    properties = dict(each.split("=", 1) for each in match[2].split(","))
    assert unescaped(properties["title"]) == finding.rule
    assert unescaped(match[3]) == finding.message
    if finding.location is not None:
        assert Path(unescaped(properties["file"])) == Path(finding.location.file)
        assert int(properties.get("line", 0)) == finding.location.line


def test_annotations_are_for_github_alone(monkeypatch, capsys):
    finding = Finding("r", "", "warning", "m")
    for value, expected in (("", ""), ("false", ""), ("true", "::warning title=r::m\n")):
        monkeypatch.setenv("GITHUB_ACTIONS", value)
        annotate([finding])
        assert capsys.readouterr() == ("", expected)


def test_findings_of_errors():
    def at(line):
        return Instruction("ld", (), source=SourceLine("k.py", line, 4))

    fault = UninitializedRead("m", at(1))
    fault.role, fault.use = "its value is an address", at(2)
    (found,) = fault.findings()
    assert (found.rule, found.location) == ("UninitializedRead", SourceLocation("k.py", 1, 4))
    assert found.related == (("its value is an address, used here", SourceLocation("k.py", 2, 4)),)

    def launch():
        raise UninitializedRead("no instruction is to blame")

    try:
        launch()
    except UninitializedRead as error:  # then it is the line of the launch
        (found,) = error.findings()
        line = launch.__code__.co_firstlineno + 1
        assert found.location == SourceLocation(__file__, line)
    (found,) = PassError("could not run", compiler_pass="lint").findings()
    assert (found.rule, found.level, found.message) == ("lint", "error", "could not run")


# ------------------------------------------------------------------------ the commands

WARNS = """
import torch, triton, triton.language as tl
from triton_ext import passes

@passes.compiler_pass("names", after="ttgir")
def names(compilation, options):
    "Says of each kernel what its name is."
    at = next(op.location for op in compilation.ttgir.operations if op.name == "tt.store")
    found = passes.Diagnostic(SEVERITY, compilation.kernel, location=at)
    return passes.Outcome(diagnostics=[found])

@triton.jit
def kernel(a):
    tl.store(a, 1.0)

print("of the script")
with passes.enabled("names"):
    kernel[(1,)](torch.zeros(1, device="cuda"))
"""


def command(folder, *arguments, **variables):
    return subprocess.run(
        [sys.executable, "-m", "triton_ext", *arguments], cwd=folder, capture_output=True,
        text=True, env={**os.environ, "GITHUB_ACTIONS": "true", **variables},
    )  # fmt: skip


def test_sarif_of_a_broken_example():
    """The fault alone is on stdout; the annotation is of the same line."""
    pytest.importorskip("triton", minversion="3.8")
    example = "examples/blackwell_matmul.py"
    done = command(ROOT, "run", "--emulate", "sm_100", "--format", "sarif", example, "early-load")
    assert done.returncode == 1
    ((rule, level, file, line),) = checked(json.loads(done.stdout))
    source = (ROOT / example).read_text().splitlines()[line - 1]
    assert (rule, level, file) == ("SynchronizationFault", "error", example)
    assert "accumulator.load(" in source
    assert f"::error title={rule},file={example},line={line},col=" in done.stderr


@pytest.mark.parametrize(("severity", "code"), [("warning", 0), ("error", 1)])
def test_sarif_of_what_passes_find(tmp_path, severity, code):
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    (tmp_path / "script.py").write_text(WARNS.replace("SEVERITY", repr(severity)))
    done = command(tmp_path, "compile", "--format", "sarif", "script.py", GITHUB_WORKSPACE="")
    assert done.returncode == code, done.stderr
    log = json.loads(done.stdout)
    ((rule, level, file, line),) = checked(log)
    assert (rule, level, file) == ("names", severity, "script.py")
    assert WARNS.splitlines()[line - 1] == "    tl.store(a, 1.0)"
    (about,) = log["runs"][0]["tool"]["driver"]["rules"]
    assert about["shortDescription"]["text"] == "Says of each kernel what its name is."
    assert "of the script" in done.stderr
    assert f"::{severity} title=names,file=script.py,line={line}" in done.stderr


def test_sarif_of_a_script_that_fails(tmp_path):
    """Nothing was found, and the log says that the run did not come to its end."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    (tmp_path / "script.py").write_text("print('said'); assert False, 'a reason'")
    done = command(tmp_path, "run", "--format", "sarif", "script.py")
    log = json.loads(done.stdout)
    assert (done.returncode, checked(log)) == (1, [])
    assert log["runs"][0]["invocations"] == [{"executionSuccessful": False}]
    assert "a reason" in done.stderr
    assert "said" in done.stderr


def test_emit_and_sarif_exclude_each_other(tmp_path):
    pytest.importorskip("triton")
    (tmp_path / "script.py").write_text("")
    arguments = ["compile", "--emit", "ptx", "--format", "sarif", "script.py"]
    done = command(tmp_path, *arguments)
    assert done.returncode == 2
    assert "--emit and --format sarif" in done.stderr
