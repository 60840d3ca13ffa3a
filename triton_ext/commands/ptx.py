"""``triton-ext ptx``: the TMA copies, barriers, MMAs and tensor-memory instructions of a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from triton_ext.commands.common import format_option, say, show, time_limited
from triton_ext.errors import LayoutError
from triton_ext.ptx.files import MAX_FILE_BYTES, PtxText, ptx_of_bytes, read_ptx
from triton_ext.ptx.listing import Listed, list_instructions
from triton_ext.ptx.parse import Instruction, Module, parse_ptx, split_operands
from triton_ext.reading import read_input

_SHOWN_REGISTERS = 4
_Listing = tuple[PtxText, Module, list[Listed]]


def _object(found: PtxText, listed: Listed) -> dict[str, Any]:
    instruction = listed.instruction
    return {
        "origin": found.origin or None,
        "kernel": listed.kernel,
        "line": instruction.line,
        "source": str(instruction.source) if instruction.source else None,
        "predicate": instruction.predicate,
        "opcode": instruction.opcode,
        "operands": list(instruction.operands),
        "notes": list(listed.notes),
        "values": listed.values,
    }


def _listings(found: list[PtxText]) -> list[_Listing]:
    """The instructions of each module; modules for other architectures are left out, but one."""
    listings, refusal = [], None
    for module in found:
        try:
            parsed = parse_ptx(module.text)
            listings.append((module, parsed, list(list_instructions(parsed))))
        except LayoutError as error:
            if error.argument != "arch":
                raise
            refusal = error
    if refusal is not None and not listings:
        raise refusal
    return listings


def _short(instruction: Instruction) -> str:
    """The instruction, without the names of most of its many registers."""
    operands = [
        f"{{{', '.join(names[: _SHOWN_REGISTERS - 1])}, ... {names[-1]}}}"
        if text.startswith("{") and len(names := split_operands(text[1:-1])) > _SHOWN_REGISTERS
        else text
        for text in instruction.operands
    ]
    guard = f"@{instruction.predicate} " if instruction.predicate else ""
    return f"{guard}{instruction.opcode} {', '.join(operands)}".rstrip()


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@format_option("text", "json")
@time_limited
def ptx(file: str, form: str) -> None:
    """List the TMA, mbarrier, MMA and tensor-memory instructions of a kernel, explained.

    FILE is PTX of any compiler, or a cubin, object or executable: its PTX is found in it (Triton's
    cubins have it, and what nvcc makes for code=compute_...), or beside it as FILE.ptx. "-" is
    stdin.

    Descriptors and operands are decoded as far as constants reach. A value that holds only for the
    first thread, the first block or the first time through a loop says so; a register that is not
    known stands as its name. Shared-memory addresses count from the start of the kernel's shared
    memory, or of a variable. Source lines are those of .loc.

    \b
    Examples:
      triton-ext ptx kernel.ptx
      triton-ext ptx ~/.triton/cache/<hash>/kernel.cubin
      triton-ext ptx - --format json < kernel.ptx
    """
    if file == "-":
        found = ptx_of_bytes(read_input(file, MAX_FILE_BYTES), "stdin")
    else:
        found = read_ptx(file)
    listings = _listings(found)
    if form == "json":
        for _, parsed, items in listings:
            for line in _not_found(parsed, items):
                say(line, err=True)
    show(
        form,
        json=lambda: {
            "instructions": [_object(found, each) for found, _, items in listings for each in items]
        },
        text=lambda: _lines(listings),
    )


def _not_found(module: Module, items: list[Listed]) -> Iterator[str]:
    """What a module has none of."""
    if not module.kernels:
        yield "no kernel (.entry)"
    listed = {item.kernel for item in items}
    for kernel in module.kernels:
        if kernel.name not in listed:
            yield f"{kernel.name}: no TMA copy, mbarrier, MMA or tensor-memory instruction"


def _lines(listings: list[_Listing]) -> Iterator[str]:
    for module, parsed, items in listings:
        if module.origin:
            yield f"PTX: {module.origin}"
        yield from _not_found(parsed, items)
        kernel = None
        for item in items:
            if item.kernel != kernel:
                kernel = item.kernel
                yield f"{kernel}:"
            instruction = item.instruction
            where = f"  [{instruction.source}]" if instruction.source else ""
            yield f"{instruction.line:6}  {_short(instruction)}{where}"
            yield from (f"          {note}" for note in item.notes)
