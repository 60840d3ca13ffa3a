"""With which instructions Triton moves a tensor between registers and shared memory.

``ttg.local_load``, ``ttg.local_store`` and ``ttg.local_alloc`` of a tensor become ldmatrix or
stmatrix if both layouts fit them, transposed if they fit only so, and else ld.shared or st.shared,
as wide as both layouts allow.

Source: Triton, ``lowerLdStMatrix`` (``third_party/nvidia/lib/TritonNVIDIAGPUToLLVM/Utility.cpp``
and ``MemoryOpToLLVM.cpp``), ``lowerLdSt`` (``lib/Conversion/TritonGPUToLLVM/Utility.cpp``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.hardware.register_access import (
    RegisterAccess,
    register_access,
    register_matrix_access,
)
from triton_ext.layouts.cluster import block_bases, within_block
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.layouts.linear_layout import LinearLayout

Direction = Literal["load", "store"]


@dataclass(frozen=True)
class PlannedMove:
    """The instructions of one move.

    Attributes:
        direction: ``store`` to, or ``load`` from, shared memory.
        instruction: ``st.shared``, ``ld.shared``, ``stmatrix`` or ``ldmatrix``.
        trans: whether with ``.trans``.
        pattern: the requests, and what the banks make of them.
        emitted_bytes: for a padded tile, the `access_bytes` of what Triton emits, if they are more:
            addresses are then not aligned, and the kernel fails; else 0.
    """

    direction: Direction
    instruction: str
    trans: bool
    pattern: RegisterAccess
    emitted_bytes: int = 0

    @property
    def access_bytes(self) -> int:
        """What one instruction moves for a thread, in bytes; 4 for each 8x8 matrix."""
        if self.is_matrix:
            return 4 * len(self.pattern.lanes) // 8
        return self.pattern.access_bytes

    @property
    def is_matrix(self) -> bool:
        """Whether it is ldmatrix or stmatrix."""
        return self.instruction.endswith("matrix")

    @property
    def mnemonic(self) -> str:
        """As in PTX, in short: ``stmatrix.x4.trans``, ``ld.shared`` with the bits of a lane."""
        if self.is_matrix:
            suffix = ".trans" if self.trans else ""
            return f"{self.instruction}.x{self.access_bytes // 4}{suffix}"
        return f"{self.instruction} of {8 * self.access_bytes} bits"

    @property
    def bytes(self) -> int:
        """What all warps move, repeated elements included."""
        return self.access_bytes * WARP_THREADS * len(self.pattern.starts)

    @property
    def excess(self) -> int:
        """Wavefronts beyond those without a conflict, of all warps."""
        return self.pattern.wavefronts - self.pattern.ideal_wavefronts

    @property
    def degree(self) -> int:
        """The n of the n-way bank conflict; 1 without one."""
        return self.pattern.request().degree

    @property
    def is_certain(self) -> bool:
        """Whether the banks' model was found right for such an access.

        Where lanes load the same 8 or 16 bytes, an H100 may need fewer wavefronts than predicted.
        """
        lanes = self.pattern.lanes
        wide = self.pattern.access_bytes > 4 and not self.is_matrix
        return not (self.direction == "load" and wide and len(set(lanes)) < len(lanes))


def _is_transposed_b8(registers: LinearLayout, shared: LinearLayout) -> bool:
    """Whether 8 lanes and 2 registers hold each 16 bytes, so that ``.trans.b8`` might do."""
    bases = registers.invert_and_compose(shared).bases
    lanes = [basis[0] for basis in bases["lane"]]
    others = [basis[0] for name in ("register", "warp") for basis in bases.get(name, ())]
    return (
        lanes[2:] == [1, 2, 4]
        and others.count(8) == 1
        and not any(offset % CHUNK_BYTES for offset in [*lanes[:2], *others] if offset != 8)
    )


def plan_move(
    registers: LinearLayout,
    shared: LinearLayout,
    element_bitwidth: int,
    direction: Direction,
    *,
    arch: int = 90,
    fixed_bits: int = 0,
    paddings: Sequence[tuple[int, int]] = (),
) -> PlannedMove:
    """How a tensor of `registers` is moved to or from a tile of `shared`. Raises LayoutError:
    layouts that do not go together; or what is not modelled: a move between blocks of the cluster,
    or one that sm_100 and later do by ldmatrix or stmatrix ``.trans.b8``.

    Args:
        registers: ``register``, ``lane``, ``warp`` (and ``block``) -> the tensor's dimensions.
        shared: ``offset`` (elements; and ``block``) -> the same dimensions, which may be larger: a
            part of a larger tile is then moved.
        element_bitwidth: 8, 16, 32 or 64.
        arch: the compute capability, times ten: sm_90 brought stmatrix, sm_100 moves of 8 bits.
        fixed_bits: the bits of the offset at which the part that is moved may begin.
        paddings: the padding of the tile, as in `register_access`.
    """
    if block_bases(registers) != block_bases(shared):
        rule = "must be split over the blocks as shared memory is"
        raise LayoutError("registers", registers.bases, rule)
    registers, shared = within_block(registers), within_block(shared)
    chunk = 8 * CHUNK_BYTES // element_bitwidth
    whole = not paddings and not fixed_bits & (chunk - 1)
    if whole and not (direction == "store" and arch < 90):
        for trans in (False, True):
            try:
                pattern = register_matrix_access(registers, shared, element_bitwidth, trans)
            except LayoutError:
                continue
            matrix = "stmatrix" if direction == "store" else "ldmatrix"
            return PlannedMove(direction, matrix, trans, pattern)
        if arch >= 100 and element_bitwidth == 8 and _is_transposed_b8(registers, shared):
            raise LayoutError("registers", registers.bases, "ldmatrix.trans.b8 is not modelled")
    pattern = register_access(registers, shared, element_bitwidth, paddings=paddings)
    emitted = 0
    if paddings:  # Triton looks at the intervals alone
        intervals = [(interval, interval) for interval, _ in paddings]
        wide = register_access(registers, shared, element_bitwidth, paddings=intervals)
        emitted = wide.access_bytes if wide.access_bytes > pattern.access_bytes else 0
    name = "st.shared" if direction == "store" else "ld.shared"
    return PlannedMove(direction, name, False, pattern, emitted)
