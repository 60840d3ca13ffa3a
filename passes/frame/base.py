"""What a compiler pass is: its name, its options, what it sees, and what it answers.

A pass is a pure function from a `Compilation`, what Triton has made of a kernel so far, and the
pass's options to an `Outcome`: a changed module, a report, diagnostics. It imports nothing of
Triton, so it also runs on the files of Triton's cache. `triton_ext.passes.frame.hook` runs passes
inside of Triton.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import linecache
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import CellType, FunctionType, MappingProxyType, MethodType
from typing import Any, ClassVar, Literal

from triton_ext._version import __version__
from triton_ext.errors import LayoutError, PassError
from triton_ext.findings import Finding, SourceLocation
from triton_ext.hardware.architecture import CAPABILITIES, Architecture, Capability
from triton_ext.mlir.locations import Location
from triton_ext.mlir.module import MlirModule
from triton_ext.ptx.parse import Module as PtxModule
from triton_ext.ptx.parse import parse_ptx

Stage = Literal["ttgir", "llir", "ptx"]
STAGES: tuple[Stage, ...] = ("ttgir", "llir", "ptx")
Severity = Literal["error", "warning", "remark"]


class PassWarning(UserWarning):
    """A compiler pass warns of something in a kernel."""


@dataclass(frozen=True)
class Diagnostic:
    """Something that a pass has to say about a line of the kernel.

    Attributes:
        severity: an error ends the compilation; a warning becomes a Python warning; a remark is
            printed on stderr.
        message: what is wrong.
        help: what to do about it; "" if there is nothing to say.
        location: the line in the kernel's source; None if it is not known.
    """

    severity: Severity
    message: str
    help: str = ""
    location: Location | None = None

    def __str__(self) -> str:
        """Location, message, source line if it can be read, and help, as compilers print them."""
        location = f"{self.location}: " if self.location else ""
        lines = [f"{location}{self.severity}: {self.message}"]
        if self.location:
            source = linecache.getline(self.location.file, self.location.line).rstrip()
            if source:
                blanks = "".join(
                    c if c == "\t" else " " for c in source[: self.location.column - 1]
                )
                lines += [f"    {source}", f"    {blanks}^"]
            lines += [f"  called at {caller}" for caller in self.location.callers]
        if self.help:
            lines.append(f"  help: {self.help}")
        return "\n".join(lines)

    def finding(self, rule: str) -> Finding:
        """For machines; `rule` is the name of the pass."""
        found = self.location
        about = registered[rule].description if rule in registered else rule
        message = f"{self.message}\nhelp: {self.help}" if self.help else self.message
        if found is None:
            return Finding(rule, about, self.severity, message)
        related = tuple(("called here", _source_location(caller)) for caller in found.callers)
        return Finding(rule, about, self.severity, message, _source_location(found), related)


def _source_location(location: Location) -> SourceLocation:
    return SourceLocation(location.file, location.line, location.column)


@dataclass(frozen=True)
class Outcome:
    """What a pass answers.

    Attributes:
        text: the changed module; None if it is as it was.
        report: what the pass found, as JSON-able data; None if it reports nothing.
        diagnostics: errors, warnings and remarks.
    """

    text: str | None = None
    report: Any = None
    diagnostics: Sequence[Diagnostic] = ()


@dataclass(frozen=True)
class Compilation:
    """A kernel on its way through the compiler, as a pass sees it.

    Attributes:
        kernel: its name.
        arch: whose descriptors and matrix moves its GPU has: 90 or 100.
        stage: the stage after which the pass runs.
        texts: the modules of this stage and of the earlier ones, as text; the TTGIR is the one that
            was lowered.
        metadata: what Triton knows for the launch: ``num_warps``, ``num_ctas``, ``tensordesc_meta``
            (a dictionary for each TMA descriptor argument), and, after ``llir``, ``shared`` (bytes
            of shared memory).
        target: the compute capability, times ten; 0 for `arch`.
    """

    kernel: str
    arch: Architecture
    stage: Stage
    texts: Mapping[str, str]
    metadata: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    target: int = 0

    def __post_init__(self) -> None:
        if not self.target:
            object.__setattr__(self, "target", self.arch)

    @property
    def capability(self) -> Capability:
        """What the GPU has."""
        return CAPABILITIES[self.target]

    @property
    def text(self) -> str:
        """The module of this stage, as text."""
        return self.texts[self.stage]

    @cached_property
    def ttgir(self) -> MlirModule:
        """The module in Triton's GPU dialect, parsed. Raises PassError: the compilation began
        behind that stage."""
        if "ttgir" not in self.texts:
            why = f"{self.kernel}: the TTGIR is not known; compile from it or from source"
            raise PassError(why)
        return _parsed_mlir(self.texts["ttgir"])

    @property
    def release(self) -> tuple[int, int] | None:
        """The release of Triton that compiles, (major, minor); None if it is not known."""
        version = re.match(r"(\d+)\.(\d+)", str(self.metadata.get("triton_version", "")))
        return (int(version[1]), int(version[2])) if version else None

    @cached_property
    def ptx(self) -> PtxModule:
        """The PTX, parsed."""
        return parse_ptx(self.texts["ptx"])


_last_parsed: tuple[str, MlirModule] | None = None


def _parsed_mlir(text: str) -> MlirModule:
    """Several passes in a row look at the same module: it is parsed once."""
    global _last_parsed
    last = _last_parsed
    if last is None or last[0] != text:
        last = _last_parsed = (text, MlirModule(text))
    return last[1]


@dataclass(frozen=True)
class NoOptions:
    """For a pass without options."""


@dataclass(frozen=True)
class ReportOptions:
    """Options of passes that report.

    Attributes:
        format: ``text`` or ``json``.
        output: a file, to which reports are appended, the first of a process replacing what was
            there; ``{kernel}`` in its name stands for the kernel's; ``-`` for stdout; ``none`` for
            nowhere (`triton_ext.passes.enabled` hands the reports out anyway).
    """

    format: str = "text"
    output: str = "-"

    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {"format": ("text", "json")}
    """The legal values of options that are words."""

    def __post_init__(self) -> None:
        for name, legal in self.CHOICES.items():
            if getattr(self, name) not in legal:
                raise LayoutError(name, getattr(self, name), f"must be one of {', '.join(legal)}")


Run = Callable[[Compilation, Any], "Outcome | None"]


@dataclass(frozen=True)
class CompilerPass:
    """A pass, as it is registered.

    Attributes:
        name: the name under which users turn it on.
        description: one line.
        stage: the stage after which it runs: ``ttgir``, ``llir`` or ``ptx``.
        run: the function.
        options: a frozen dataclass, whose fields are the options; all have defaults.
        render: its report, for people: (kernel, report, options) -> text; None for the report as
            JSON.
        version: the version of its behaviour, part of the key of Triton's cache.
        is_optional: whether a kernel may as well do without its change: one that Triton refuses is
            left out, with a warning.
    """

    name: str
    description: str
    stage: Stage
    run: Run
    options: type[Any] = NoOptions
    render: Callable[[str, Any, Any], str] | None = None
    version: str = ""
    is_optional: bool = False

    def __call__(self, compilation: Compilation, options: Any = None) -> Outcome:
        """Run the pass alone, as a function."""
        return self.run(compilation, options or self.options()) or Outcome()

    def configured(self, **options: Any) -> ConfiguredPass:
        """The pass with options. Raises LayoutError: there is no such option, or its value is
        illegal."""
        legal = [each.name for each in dataclasses.fields(self.options)]
        for name in options:
            if name not in legal:
                known = f"its options are {', '.join(legal)}" if legal else "it has no options"
                raise LayoutError(f"{self.name}.{name}", options[name], f"no such option; {known}")
            default = getattr(self.options(), name)
            if isinstance(default, (bool, int, float, str)):
                numbers = (int, float) if isinstance(default, float) else type(default)
                if not isinstance(options[name], numbers):
                    rule = f"must be of type {type(default).__name__}, as {default!r} is"
                    raise LayoutError(f"{self.name}.{name}", options[name], rule)
        return ConfiguredPass(self, self.options(**options))


@dataclass(frozen=True)
class ConfiguredPass:
    """A pass with the values of its options."""

    compiler_pass: CompilerPass
    options: Any

    @property
    def name(self) -> str:
        """The name of the pass."""
        return self.compiler_pass.name

    def __str__(self) -> str:
        """In MLIR's notation for pipelines: ``name{option=value ...}``, options that are set."""
        default = self.compiler_pass.options()
        changed = [
            f"{each.name}={value}"
            for each in dataclasses.fields(self.options)
            if (value := getattr(self.options, each.name)) != getattr(default, each.name)
        ]
        return f"{self.name}{{{' '.join(changed)}}}" if changed else self.name


registered: dict[str, CompilerPass] = {}
"""The passes that are loaded, by name."""
BUILT_IN = {
    "report-layouts": "report_layouts",
    "check-conversion": "check_conversion",
    "nvmma-to-linear": "nvmma_to_linear.rewrite",
    "verify-descriptors": "verify_descriptors.verify",
    "widen-swizzle": "widen_swizzle.rewrite",
    "lint-shared": "lint_shared.lint",
}
"""The project's passes, and their modules, which are imported when they are needed."""


def _is_ours(run: Run) -> bool:
    return (getattr(run, "__module__", "") or "").startswith("triton_ext.")


def _own_version(run: Run) -> str:
    """A pass that is not this project's is another one whenever its source changes, or its file, or
    what the function closes over."""
    if _is_ours(run):
        return __version__
    return hashlib.sha256(_identity(run, ()) + _source_file(run)).hexdigest()[:16]


def _source_file(run: Any) -> bytes:
    """The file that has the function, with the helpers that it calls; b"" if there is none."""
    while isinstance(run, functools.partial):
        run = run.func
    found = run if isinstance(run, (FunctionType, MethodType)) else type(run)
    try:
        return Path(inspect.getsourcefile(found) or "").read_bytes()
    except (OSError, TypeError):
        return b""


def _identity(value: Any, within: tuple[int, ...]) -> bytes:
    """Bytes that differ wherever a function, or a value that it uses, behaves differently.
    `within`: the ids of the functions whose parts are looked at: they may name themselves."""
    if id(value) in within:
        return b"itself"
    within = (*within, id(value))
    if isinstance(value, functools.partial):
        parts: list[Any] = [value.func, value.args, value.keywords]
    elif isinstance(value, MethodType):
        parts = [value.__func__, value.__self__]
    elif isinstance(value, FunctionType):
        try:
            source: Any = inspect.getsource(value)
        except (OSError, TypeError):
            source = (value.__code__.co_code, repr(value.__code__.co_consts))
        cells = [cell for cell in value.__closure__ or () if cell != CellType()]
        closed = [cell.cell_contents for cell in cells]
        parts = [source, value.__defaults__, value.__kwdefaults__, *closed]
    elif isinstance(value, (tuple, list)):
        parts = list(value)
    elif isinstance(value, dict):
        parts = [part for pair in value.items() for part in pair]
    else:
        try:
            return pickle.dumps(value)
        except Exception:  # of a value that is alive, such as a lock: it is like no other
            return repr((type(value), id(value))).encode()
    return b"".join(hashlib.sha256(_identity(part, within)).digest() for part in parts)


def compiler_pass(
    name: str,
    *,
    after: Stage,
    options: type[Any] = NoOptions,
    render: Callable[[str, Any, Any], str] | None = None,
    version: str = "",
    is_optional: bool = False,
) -> Callable[[Run], CompilerPass]:
    """Register a function as a compiler pass.

    Args:
        name: words with hyphens.
        after: the stage after which it runs.
        options: a frozen dataclass of options, which all have defaults.
        render: the pass's report for people.
        version: part of the cache key; by default the project's version for its own passes, and a
            hash of the function's file, and of what it closes over, for others.
        is_optional: whether a change that Triton refuses is left out, with a warning; else it is
            an error.

    The function gets a `Compilation` and the options, and returns an `Outcome` or None. The first
    line of its docstring is the description.

    Raises:
        LayoutError: the name or the stage is illegal, or the name is that of one of this project's
            passes.
    """
    if not isinstance(name, str) or not name.replace("-", "").replace("_", "").isalnum():
        raise LayoutError("name", name, "must be letters, digits and hyphens")
    if after not in STAGES:
        raise LayoutError("after", after, f"must be one of {', '.join(STAGES)}")
    if not dataclasses.is_dataclass(options):
        raise LayoutError("options", options, "must be a dataclass, whose fields have defaults")

    def register(run: Run) -> CompilerPass:
        if name in BUILT_IN and not _is_ours(run):
            raise LayoutError("name", name, "is a pass of triton_ext; take another name")
        description = (inspect.getdoc(run) or name).splitlines()[0]
        found = CompilerPass(
            name, description, after, run, options, render, version or _own_version(run),
            is_optional,
        )  # fmt: skip
        registered[name] = found
        return found

    return register
