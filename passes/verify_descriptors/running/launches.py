"""With which arguments a kernel and its TTGIR are run."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from triton_ext.mlir.ir import Operation
from triton_ext.mlir.module import MlirModule
from triton_ext.ptx.parse import Kernel


@dataclass(frozen=True)
class Bases:
    """The first addresses of memory that the hardware or the system allocates.

    Attributes:
        shared: the first dynamic byte of shared memory.
        tensor: the first column of the tensor memory that the kernel allocates.
    """

    shared: int = 0
    tensor: int = 0


BASES, MOVED = Bases(1024, 64), Bases(21 * 1024, 128)
"""Two choices: the first is that of the hardware, where the system keeps the first KiB."""


def parameter(index: int) -> int:
    """The address that a kernel is given as a parameter."""
    return (index + 1) << 40


@dataclass(frozen=True)
class TrialLaunch:
    """One block of a trial launch, and the arguments of the kernel.

    Attributes:
        arguments: integers, each by the index of its parameter.
        program: the block's index in the grid: ``%ctaid``.
        programs: the size of the grid: ``%nctaid``.
    """

    arguments: Mapping[int, int]
    program: tuple[int, int, int]
    programs: tuple[int, int, int]

    def at_block(self, axis: int, number: int) -> TrialLaunch:
        """The same launch for the block with another index along an axis; the grid has it."""
        x, y, z = (number if i == axis else at for i, at in enumerate(self.program))
        sizes = (max(at + 1, size) for at, size in zip((x, y, z), self.programs, strict=True))
        width, height, depth = sizes
        return replace(self, program=(x, y, z), programs=(width, height, depth))

    def numbers(self, kernel: Kernel) -> dict[str, int]:
        """The numbers by their names in the kernel's PTX: ``%ctaid.x``, ``[kernel_param_0]``."""
        found = {
            f"%{name}.{axis}": values[i]
            for name, values in (("ctaid", self.program), ("nctaid", self.programs))
            for i, axis in enumerate("xyz")
        }
        for index, number in self.arguments.items():
            if index < len(kernel.parameters):
                found[f"[{kernel.parameters[index]}]"] = number
        return found


def launches(module: MlirModule) -> list[TrialLaunch]:
    """Choices of arguments: a later one may reach instructions that the first does not.

    The first choice makes tensors of a few tiles, so that loops run a few times. The second takes
    integers for numbers of iterations, unless they are known to be multiples of 16. The third makes
    tensors large.
    """
    short, counts, large = {}, {}, {}
    kernel = module.kernel
    aligned = multiples(kernel) if kernel else set()
    for value in kernel.regions[0].entry.arguments if kernel else ():
        at = value.index
        if value.type in ("i32", "i64"):
            short[at], large[at] = 16 * (21 + at), 16 * (257 + 6 * at)
            counts[at] = short[at] if value.name in aligned else 4 + at % 4
        elif (value.type or "").startswith("!tt.ptr"):
            short[at] = counts[at] = large[at] = parameter(at)
    return [
        TrialLaunch(short, (2, 3, 1), (4, 7, 5)),
        TrialLaunch(counts, (2, 3, 1), (4, 7, 5)),
        TrialLaunch(large, (37, 3, 2), (61, 7, 5)),
    ]


def others(module: MlirModule) -> list[TrialLaunch]:
    """Three more choices: a block far from the first one, in tensors whose sizes are multiples of
    all tiles; sizes below those of most tiles; and few tiles, which leave two stages of 64 elements
    in the other phase than the first choice does."""
    given = dict(launches(module)[0].arguments)
    values = module.kernel.regions[0].entry.arguments if module.kernel else ()
    sizes = [each.index for each in values if each.type == "i32"]
    large, small = ({at: unit * (5 + at % 3) for at in sizes} for unit in (256, 16))
    phases = {at: 64 * (6 if (20 + at) // 8 % 2 else 4) for at in sizes}
    return [
        TrialLaunch(given | large, (187, 2, 1), (211, 3, 2)),
        TrialLaunch(given | small, (0, 0, 0), (2, 1, 1)),
        TrialLaunch(given | phases, (2, 1, 0), (17, 3, 2)),
    ]


def multiples(function: Operation) -> set[str]:
    """The arguments with a ``tt.divisibility``."""
    found, name = set(), ""
    for before, token in itertools.pairwise(function.tokens):
        if before.kind == "value" and token.text == ":":
            name = before.text
        elif token.text == "tt.divisibility":
            found.add(name)
    return found
