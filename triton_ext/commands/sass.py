"""The check of ``triton-ext compile --sass``: what ptxas made of a kernel."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import click

from triton_ext.findings import Finding, SourceLocation
from triton_ext.ptx.cubin import disassembled
from triton_ext.ptx.sass import OverwrittenOperand, SassInstruction, overwritten_operands
from triton_ext.render.words import counted

RULE = "sass-operands"
_ABOUT = "registers of a wgmma's A that are written before it is waited for"
_HELP = (
    "help: ptxas before CUDA 13.3 does this (triton#9433, triton#11781): take a later one, by"
    " TRITON_PTXAS_PATH; if it says the same, the PTX itself writes them too early"
)


def nvdisasm() -> str:
    """The path of NVIDIA's disassembler: Triton's own, or the one on PATH. Raises click.UsageError:
    there is none."""
    import triton

    try:
        return str(triton.knobs.nvidia.nvdisasm.path)
    except RuntimeError:
        found = shutil.which("nvdisasm")
    if found is None:
        raise click.UsageError(
            "--sass needs nvdisasm, which neither Triton nor PATH has: install the CUDA toolkit,"
            " or set TRITON_NVDISASM_PATH"
        )
    return found


def check_cubin(cubin: Path, kernel: str) -> list[Finding]:
    """What is wrong with a kernel's machine code, by source line. Raises click.UsageError: the code
    cannot be disassembled."""
    listing = disassembled(cubin.read_bytes(), nvdisasm(), "-g")
    if not listing:
        raise click.UsageError(f"nvdisasm cannot read {cubin}, which ptxas made of {kernel}")
    return list(_findings(kernel, overwritten_operands(listing)))


def _location(instruction: SassInstruction) -> SourceLocation | None:
    return SourceLocation(instruction.file, instruction.line) if instruction.file else None


def _findings(kernel: str, found: list[OverwrittenOperand]) -> Iterator[Finding]:
    """One for each source line with products whose A is overwritten: the first, in detail."""

    def source(each: OverwrittenOperand) -> tuple[str, int]:
        return each.product.file, each.product.line

    for _, group in itertools.groupby(sorted(found, key=source), source):
        these = sorted(group, key=lambda each: (each.product.address, each.write.address))
        first = these[0]
        names = ", ".join(f"R{number}" for number in first.registers)
        products = counted(len({each.product.address for each in these}), "wgmma")
        writes = counted(len({each.write.address for each in these}), "instruction")
        message = (
            f"{kernel}: registers of A of {products} are written by {writes} before the products"
            f" are waited for, such as {names}:\n  {first.product}\n  {first.write}\n{_HELP}"
        )
        location, other = _location(first.product), _location(first.write)
        related = (("written here", other),) if other else ()
        yield Finding(RULE, _ABOUT, "error", message, location, related)
