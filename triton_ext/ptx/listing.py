"""The TMA, mbarrier, MMA and tensor-memory instructions of a PTX module, in order, explained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from triton_ext.hardware.architecture import generation, target_number
from triton_ext.ptx.explain import LISTED, explain
from triton_ext.ptx.folding import Folder
from triton_ext.ptx.notes import Notes
from triton_ext.ptx.parse import Instruction, Module


@dataclass(frozen=True)
class Listed:
    """One instruction of the listing, with what is known about its operands.

    Attributes:
        kernel: the name of the function that contains it.
        instruction: the parsed instruction.
        notes: what was decoded, one line each.
        values: the same for programs: addresses are in bytes; a value that is not known is None or
            the name of the register, parameter or symbol that it is computed from.
    """

    kernel: str
    instruction: Instruction
    notes: tuple[str, ...]
    values: dict[str, Any]


def list_instructions(module: Module) -> Iterator[Listed]:
    """The asynchronous and tensor-core instructions of a module, in order, decoded. Raises
    LayoutError: the module is for a target that is not known."""
    arch = generation(target_number(module.target.split(",")[0]))
    for kernel in module.kernels:
        folder = Folder(kernel, module.variables)
        symbols = {
            variable.name
            for variable in (*module.variables, *kernel.variables)
            if variable.space == "shared"
        }
        for instruction in kernel.instructions:
            if instruction.opcode.startswith(LISTED):
                notes = Notes(instruction, folder, arch, symbols)
                explain(notes)
                yield Listed(kernel.name, instruction, tuple(notes.lines), notes.values)
