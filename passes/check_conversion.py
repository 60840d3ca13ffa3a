"""check-conversion: each shared encoding of a kernel, converted by us and by Triton's C++.

Compared are NVMMA, swizzled and shared-linear encodings, each with the shape of the tile that it
lays out: the bases of ``offset`` and ``block``, in order, and the alignment of NVMMA and
shared-linear ones. Other encodings (``padded_shared``), and shapes that have no linear layout, are
listed in the report as not compared.

Triton is asked in this process, through its Python binding: of the passes, this one alone needs
Triton at hand. It aborts the process on some illegal shapes, so our conversion comes first, and
what that refuses never reaches Triton.
"""

from __future__ import annotations

import atexit
import functools
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from triton_ext.errors import LayoutError, PassError
from triton_ext.layouts.encodings import NVMMAShared, SharedEncoding, parse_encoding
from triton_ext.layouts.triton.converted import Converted
from triton_ext.layouts.triton.known_faults import KnownFault, known_fault
from triton_ext.mlir.ir import Value
from triton_ext.mlir.locations import Location
from triton_ext.mlir.module import MlirModule
from triton_ext.passes.frame.base import (
    Compilation,
    Diagnostic,
    Outcome,
    ReportOptions,
    Severity,
    compiler_pass,
)


@dataclass(frozen=True)
class CheckConversionOptions(ReportOptions):
    """Options of check-conversion.

    Attributes:
        known_faults: ``warn`` or ``error``: what a known fault of this release of Triton is. The
            kernel may be right in spite of it.
        output: as in `ReportOptions`; ``none`` by default.
    """

    output: str = "none"
    known_faults: str = "warn"

    CHOICES: ClassVar = {**ReportOptions.CHOICES, "known_faults": ("warn", "error")}


def convert(encoding: SharedEncoding, shape: tuple[int, ...]) -> Converted:
    """Our conversion. Raises LayoutError: the shape has no linear layout, or the encoding is
    padded, for which Triton has no conversion."""
    if encoding.paddings:
        rule = "is padded: Triton makes no linear layout of it"
        raise LayoutError("encoding", str(encoding), rule)
    bases = encoding.to_linear_layout(shape).bases
    return Converted(tuple(bases["offset"]), tuple(bases.get("block", ())), encoding.alignment)


class _Triton:
    """Triton's conversion, in a context of MLIR of its own."""

    def __init__(self) -> None:
        try:
            import triton

            from triton_ext.layouts.triton.gluon import mlir_context, op_builder
        except ImportError as error:
            raise PassError(f"check-conversion cannot ask Triton: {error}") from error
        self.version = triton.__version__
        self._context = mlir_context()
        self._builder = op_builder(self._context)
        self._lock = threading.Lock()

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor = re.findall(r"\d+", self.version)[:2]
        return int(major), int(minor)

    def convert(self, encoding: SharedEncoding, shape: tuple[int, ...]) -> Converted:
        """What Triton's C++ makes of it. Raises RuntimeError: its verifier refuses the encoding."""
        from triton_ext.layouts.triton.gluon import linear_layout

        with self._lock:
            return linear_layout(self._builder, encoding, shape)


@functools.lru_cache(maxsize=1)
def ask_triton() -> _Triton:
    """The one Triton of this process."""
    atexit.register(ask_triton.cache_clear)  # its objects must not outlive the interpreter
    return _Triton()


@dataclass(frozen=True)
class _Tile:
    """A distinct encoding and shape of a module, and where it first is.

    Attributes:
        shape: the allocation's; a leading dimension beyond the encoding's rank counts buffers.
    """

    encoding: str
    shape: tuple[int, ...]
    kind: str
    value: Value

    @property
    def location(self) -> Location | None:
        """Where the allocation or view stands; for a kernel's argument, its first use."""
        if self.value.definition:
            return self.value.definition.location
        return next((user.location for user, _ in self.value.uses if user.location), None)


def _tiles(module: MlirModule) -> Iterator[_Tile]:
    """Allocations first, so that diagnostics name their lines; TMA descriptors last."""

    def rank(value: Value) -> int:
        if value.definition and value.definition.name == "ttg.local_alloc":
            return 0
        return 2 if "tensordesc" in (value.type or "") else 1

    found: dict[tuple[str, tuple[int, ...]], _Tile] = {}
    for value in sorted(module.values, key=rank):
        kind = module.memory(value)
        if kind and "shared" in kind.mnemonic:
            tile = _Tile(kind.encoding, kind.allocated, kind.kind, value)
            found.setdefault((tile.encoding, tile.shape), tile)
    yield from found.values()


def _difference(
    tile: _Tile, shape: tuple[int, ...], ours: Converted, theirs: Converted | str,
    triton: _Triton, fault: KnownFault | None, options: CheckConversionOptions,
) -> Diagnostic:  # fmt: skip
    severity: Severity = "error"
    help_ = (
        "one of the two is wrong, and the kernel reads and writes what Triton's says; until it is"
        " known which, use another encoding, or report it with this message"
    )
    if fault:
        severity = "warning" if options.known_faults == "warn" else "error"
        help_ = (
            f'a known fault of Triton {triton.version}: "{fault.title}": {fault.why_wrong}. Use'
            " another encoding or another release, unless nothing but Triton reads this memory"
        )
    return Diagnostic(
        severity,
        f"{tile.encoding} of a tile {'x'.join(map(str, shape))}: Triton {triton.version} converts"
        " it to another linear layout than triton_ext"
        f"\n    triton_ext: {ours}\n    Triton:     {theirs}",
        help_,
        tile.location,
    )


def _render(kernel: str, report: Any, options: Any) -> str:
    if options.format == "json":
        return json.dumps({"kernel": kernel, **report})
    different = sum(each["verdict"] != "equal" for each in report["compared"])
    lines = [
        f"check-conversion: {kernel}, Triton {report['triton']}: {len(report['compared'])}"
        f" compared, {different} different, {len(report['not_compared'])} not compared"
    ]
    for each in report["compared"]:
        lines.append(
            f"  {each['verdict']}: {each['shape']} {each['encoding']} ({each['location']})"
        )
    for each in report["not_compared"]:
        lines.append(f"  not compared: {each['shape']} {each['encoding']}: {each['reason']}")
    return "\n".join(lines)


@compiler_pass("check-conversion", after="ttgir", options=CheckConversionOptions, render=_render)
def check_conversion(compilation: Compilation, options: CheckConversionOptions) -> Outcome | None:
    """Each shared encoding of the kernel, converted by us and by Triton's C++, and compared.

    A difference is an error; a known fault of the release is a warning, unless the option
    ``known_faults=error`` is set.
    """
    triton: _Triton | None = None
    compared: list[dict[str, Any]] = []
    not_compared: list[dict[str, Any]] = []
    diagnostics = []
    for tile in _tiles(compilation.ttgir):
        described = {
            "encoding": tile.encoding,
            "shape": list(tile.shape),
            "kind": tile.kind,
            "location": str(tile.location or ""),
        }
        try:
            encoding = parse_encoding(tile.encoding)
            shape = tile.shape[-encoding.rank :]
            ours = convert(encoding, shape)
        except LayoutError as error:
            not_compared.append({**described, "reason": str(error)})
            continue
        triton = triton or ask_triton()
        try:
            theirs: Converted | str = triton.convert(encoding, shape)
        except RuntimeError as error:
            theirs = f"refused: {error}"
        if ours == theirs:
            compared.append({**described, "verdict": "equal"})
            continue
        fault = None
        if isinstance(encoding, NVMMAShared) and isinstance(theirs, Converted):
            fault = known_fault(triton.release, shape, encoding, theirs)
        compared.append({**described, "verdict": fault.title if fault else "different"})
        diagnostics.append(_difference(tile, shape, ours, theirs, triton, fault, options))
    if not compared and not not_compared:
        return None
    report = {
        "triton": triton.version if triton else "not asked",
        "compared": compared,
        "not_compared": not_compared,
    }
    return Outcome(report=report, diagnostics=diagnostics)
