"""A list of passes with options: its notation, its cache key, and how it runs on one stage."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from triton_ext._version import __version__
from triton_ext.errors import LayoutError, PassError
from triton_ext.passes.frame.base import (
    Compilation,
    CompilerPass,
    ConfiguredPass,
    Diagnostic,
    Outcome,
    Stage,
)
from triton_ext.passes.frame.lookup import get_pass
from triton_ext.passes.frame.raised import raised

PassLike: TypeAlias = "str | CompilerPass | ConfiguredPass"
_NOTATION = re.compile(r"\s*([^\s{},][^{},]*?)\s*(?:\{((?:[^{}]|\{[^{}]*\})*)\})?\s*(?:,|$)")


def _value(text: str, default: Any) -> Any:
    """The value of an option, of the type of its default where that says."""
    if isinstance(default, str):
        return text
    words = {"true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def parse_passes(text: str) -> tuple[ConfiguredPass, ...]:
    """Read ``name,name{option=value option=value}``, MLIR's notation for pipelines.

    Args:
        text: for each pass a name, ``file.py::name`` or ``package.module:name`` (`get_pass`).

    Raises:
        LayoutError: the notation, the name of a pass or an option is wrong.
        PassError: a file or a module of passes cannot be imported.
    """
    found, at = [], 0
    stripped = text.strip().rstrip(",")
    while at < len(stripped):
        match = _NOTATION.match(stripped, at)
        if match is None:
            rule = "must be names, as in 'report-layouts{format=json},lint-shared'"
            raise LayoutError("passes", text, rule)
        each, options = get_pass(match[1]), {}
        defaults = each.options()
        for pair in (match[2] or "").split():
            key, equals, value = pair.partition("=")
            if not equals:
                raise LayoutError("passes", pair, "an option is option=value, without blanks")
            key = key.replace("-", "_")
            options[key] = _value(value, getattr(defaults, key, None))
        found.append(each.configured(**options))
        at = match.end()
    return tuple(found)


@dataclass(frozen=True)
class PassResult:
    """What a pass said about a kernel.

    Attributes:
        kernel: its name.
        compiler_pass: the pass, with its options.
        report: JSON-able data, or None.
        diagnostics: warnings and remarks.
    """

    kernel: str
    compiler_pass: ConfiguredPass
    report: Any = None
    diagnostics: tuple[Diagnostic, ...] = ()

    def report_text(self) -> str:
        """The report for people, as the pass renders it; else a line of JSON."""
        render = self.compiler_pass.compiler_pass.render
        if render:
            return render(self.kernel, self.report, self.compiler_pass.options)
        return json.dumps({"kernel": self.kernel, self.compiler_pass.name: self.report})


@dataclass(frozen=True)
class Pipeline:
    """Passes that run together, in the order in which they are named, each after its stage."""

    passes: tuple[ConfiguredPass, ...] = ()

    @classmethod
    def of(cls, passes: Iterable[PassLike]) -> Pipeline:
        """From names (``"lint-shared"``, also with options), passes, and configured passes."""
        found: list[ConfiguredPass] = []
        for each in passes:
            if isinstance(each, str):
                found += parse_passes(each)
            elif isinstance(each, CompilerPass):
                found.append(each.configured())
            elif isinstance(each, ConfiguredPass):
                found.append(each)
            else:
                raise LayoutError("passes", each, "must be a name or a pass of triton_ext.passes")
        return cls(()).extended(found)

    def extended(self, passes: Iterable[ConfiguredPass]) -> Pipeline:
        """The pipeline with more passes at its end; one that it has gets the new options."""
        found = {each.name: each for each in self.passes}
        found.update({each.name: each for each in passes})
        return Pipeline(tuple(found.values()))

    def at(self, stage: Stage) -> tuple[ConfiguredPass, ...]:
        """Those that run after a stage."""
        return tuple(each for each in self.passes if each.compiler_pass.stage == stage)

    def __bool__(self) -> bool:
        return bool(self.passes)

    def __str__(self) -> str:
        return ",".join(map(str, self.passes))

    @cached_property
    def key(self) -> str:
        """What Triton's cache must know: the passes, their options and versions, and the project's.

        "" without passes: kernels then have the key that they have without this project.
        """
        if not self.passes:
            return ""
        described = [
            [each.name, each.compiler_pass.version, dataclasses.asdict(each.options)]
            for each in self.passes
        ]
        return "triton_layouts " + json.dumps([__version__, described], default=repr)

    @cached_property
    def digest(self) -> str:
        """The key, short: Triton compares it at every launch. "" without passes."""
        return self.key and hashlib.sha256(self.key.encode()).hexdigest()


def run_stage(
    pipeline: Pipeline, compilation: Compilation, check: Callable[[ConfiguredPass, str], str]
) -> tuple[str, list[PassResult]]:
    """Run the passes of a stage, one after the other.

    Args:
        compilation: the kernel at that stage.
        check: called with each changed module: verifies it, and returns it as the compiler prints
            it.

    Returns:
        The text of the module afterwards, and what each pass said.

    Raises:
        PassError: a pass reported errors, or failed.
    """
    results = []
    for each in pipeline.at(compilation.stage):
        outcome = _run(each, compilation)
        errors = [found for found in outcome.diagnostics if found.severity == "error"]
        if errors:
            shown = "\n".join(map(str, errors))
            message = f"{each.name}: {compilation.kernel}\n{shown}"
            raise PassError(message, outcome.diagnostics, each.name)
        if outcome.text is not None and outcome.text != compilation.text:
            try:
                changed = check(each, outcome.text)
            except PassError as error:
                if not each.compiler_pass.is_optional:
                    raise
                results.append(_left_out(each, compilation, error))
                continue
            texts = {**compilation.texts, compilation.stage: changed}
            compilation = dataclasses.replace(compilation, texts=texts)
        results.append(
            PassResult(compilation.kernel, each, outcome.report, tuple(outcome.diagnostics))
        )
    return compilation.text, results


def _left_out(each: ConfiguredPass, compilation: Compilation, error: PassError) -> PassResult:
    """What is said of a change that Triton refuses."""
    warning = Diagnostic(
        "warning",
        f"{compilation.kernel} stays as it was: {error}",
        "the kernel is not at fault; report it to this project, with the TTGIR",
    )
    return PassResult(compilation.kernel, each, None, (warning,))


def _run(each: ConfiguredPass, compilation: Compilation) -> Outcome:
    try:
        outcome = each.compiler_pass.run(compilation, each.options) or Outcome()
    except PassError:
        raise
    except Exception as error:
        raise PassError(
            f"the pass {each.name} failed on {compilation.kernel} after {compilation.stage}:"
            f" {raised(error)}",
            compiler_pass=each.name,
        ) from None
    if not isinstance(outcome, Outcome):
        raise PassError(f"the pass {each.name} returned {outcome!r}, not an Outcome or None")
    return outcome
