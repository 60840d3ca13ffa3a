"""``triton-ext ptx``: the TMA copies, barriers, MMAs and tensor-memory instructions of a kernel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import architecture
from triton_ext.hardware.instruction_descriptor import KINDS, InstructionDescriptor
from triton_ext.hardware.smem_descriptor import SmemDescriptor
from triton_ext.ptx import Instruction, Kernel, Module, parse_ptx
from triton_ext.ptx_folding import Bits, Folder

_SHOWN = ("cp.async.bulk", "cp.reduce.async.bulk", "mbarrier.", "wgmma.", "tcgen05.")
_START_BITS = 14


@dataclass(frozen=True)
class Listed:
    """One instruction of the listing, with what its operands are known to be.

    Attributes:
        kernel: the function that it stands in.
        instruction: as parsed.
        notes: what was decoded, a line each.
    """

    kernel: str
    instruction: Instruction
    notes: tuple[str, ...]


def _matrix_descriptor(name: str, bits: Bits, arch: int) -> str:
    """A descriptor in words; its start address only where it is known."""
    if not bits.is_constant(64) and bits.field(16, 48) is None:
        return f"{name}: descriptor not known at compile time"
    start = bits.field(0, _START_BITS)
    value = bits.value & ~((1 << 16) - 1) | (start or 0)
    try:
        decoded = SmemDescriptor.decode(value, arch)
    except LayoutError as error:
        return f"{name}: ILLEGAL descriptor {value:#018x}: {error.rule}"
    at = f"+{decoded.start_address}" if start is not None else "at an address of the loop"
    swizzle = f"{decoded.swizzle_byte_width}B" if decoded.swizzle_byte_width else "none"
    return (
        f"{name}: {value:#018x} {at}, LBO {decoded.leading_byte_offset},"
        f" SBO {decoded.stride_byte_offset}, swizzle {swizzle}"
    )


def _notes(instruction: Instruction, folder: Folder, arch: int) -> Iterator[str]:
    opcode, operands = instruction.opcode, instruction.operands
    if opcode.startswith("wgmma.mma_async"):
        for name, operand in zip(("A", "B"), operands[1:3], strict=False):
            if not operand.startswith("{"):
                yield _matrix_descriptor(name, folder.operand(operand, 64, instruction), arch)
    elif opcode.startswith("tcgen05.mma"):
        for name, operand in zip(("A", "B"), operands[1:3], strict=False):
            if operand.startswith("["):
                yield f"{name}: in tensor memory"
            else:
                yield _matrix_descriptor(name, folder.operand(operand, 64, instruction), arch)
        kind = next((part[6:] for part in opcode.split(".") if part.startswith("kind::")), "")
        if kind in KINDS and len(operands) > 3:
            bits = folder.operand(operands[3], 32, instruction)
            if bits.is_constant(32):
                try:
                    decoded = InstructionDescriptor.decode(bits.value, kind)
                    yield from (f"{bits.value:#010x}: {line}" for line in decoded.describe())
                except LayoutError as error:
                    yield f"ILLEGAL instruction descriptor {bits.value:#010x}: {error.rule}"
    elif opcode.startswith("mbarrier.arrive.expect_tx") or ".expect_tx" in opcode:
        bits = folder.operand(operands[-1], 32, instruction)
        if bits.is_constant(32):
            yield f"expects {bits.value} bytes"


def list_instructions(module: Module) -> Iterator[Listed]:
    """The asynchronous and tensor-core instructions of a module, in order, decoded.

    Raises:
        LayoutError: the module has such instructions for neither sm_90 nor sm_100.
    """
    arch = architecture(module.target.split(",")[0])
    for kernel in module.kernels:
        yield from _list_kernel(kernel, arch)


def _list_kernel(kernel: Kernel, arch: int) -> Iterator[Listed]:
    folder = Folder(kernel)
    for instruction in kernel.instructions:
        if instruction.opcode.startswith(_SHOWN):
            yield Listed(kernel.name, instruction, tuple(_notes(instruction, folder, arch)))


def _object(listed: Listed) -> dict[str, Any]:
    instruction = listed.instruction
    return {
        "kernel": listed.kernel,
        "line": instruction.line,
        "source": str(instruction.source) if instruction.source else None,
        "predicate": instruction.predicate,
        "opcode": instruction.opcode,
        "operands": list(instruction.operands),
        "notes": list(listed.notes),
    }


@click.command()
@click.argument("file", type=click.File("r", errors="replace"))
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
def ptx(file: Any, form: str) -> None:
    """List the TMA, mbarrier, MMA and tensor-memory instructions of a PTX file ("-": stdin).

    Descriptors are decoded as far as constants reach, for the first iteration of a loop and the
    first thread; shared-memory addresses count from the start of dynamic shared memory. Source
    lines are those of .loc.

    \b
    Examples:
      triton-ext ptx kernel.ptx
      triton-ext ptx - --format json < kernel.ptx
    """
    listed = list(list_instructions(parse_ptx(file.read())))
    if form == "json":
        click.echo(json.dumps([_object(item) for item in listed], indent=2))
        return
    kernel = ""
    for item in listed:
        if item.kernel != kernel:
            kernel = item.kernel
            click.echo(f"{kernel}:")
        instruction = item.instruction
        where = f"  [{instruction.source}]" if instruction.source else ""
        text = str(instruction)
        if instruction.opcode.startswith("wgmma.mma_async"):
            text = f"{instruction.opcode} ..., {', '.join(instruction.operands[1:])}"
        click.echo(f"{instruction.line:6}  {text}{where}")
        for note in item.notes:
            click.echo(f"          {note}")
