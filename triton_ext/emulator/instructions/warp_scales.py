"""The scale factors of ``mma.sync`` with ``.block_scale`` (PTX ISA, "Block Scaling for mma.sync").

A's factors of row r are in one register of thread ``4 (r % 8) + 2 thread-id-a + r / 8``, B's of
column c in one of thread ``4 c + thread-id-b``; ``byte-id`` says at which of its bytes they begin.
(CUTLASS, ``mma_traits_sm120.hpp``: SFALayout, SFBLayout.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.operands import Operands, Reader
from triton_ext.emulator.errors import DescriptorFault, UnsupportedInstruction
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.units.scale_factors import SCALES
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.ptx.parse import Instruction

KINDS: dict[str, tuple[tuple[int, int, int], dict[str, dict[str, int]]]] = {
    "mxf8f6f4": ((16, 8, 32), {"ue8m0": {"": 1, "1X": 1}}),
    "mxf4": ((16, 8, 64), {"ue8m0": {"": 2, "2X": 2}}),
    "mxf4nvf4": ((16, 8, 64), {"ue8m0": {"2X": 2, "4X": 4}, "ue4m3": {"4X": 4}}),
}
"""Kind -> shape, and scale type -> ``.scale_vec`` -> factors of a row (PTX ISA, "Valid combinations
of .scale_vec_size and .kind qualifier")."""
_QUAD = 4


@dataclass(frozen=True)
class _Factors:
    """One operand's scale factors.

    Attributes:
        data, byte, thread: scale-data, byte-id and thread-id.
        rows: of A, or columns of B.
        count: factors of each.
        values: the value of each code.
    """

    data: Reader
    byte: Reader
    thread: Reader
    rows: int
    count: int
    values: NDArray[np.float64]

    def read(self, cta: Cta, lanes: Lanes) -> NDArray[np.float64]:
        """(warps, rows, count)."""
        size = lane_sets.count(lanes)
        data, byte, thread = (
            np.broadcast_to(np.asarray(read(cta, lanes)), (size,)).reshape(-1, WARP_THREADS)
            for read in (self.data, self.byte, self.thread)
        )
        self._check("byte-id", byte, range(0, 4, self.count))
        # two threads of a quad have A's factors, one has B's
        self._check("thread-id", thread, range(_QUAD * 8 // self.rows))
        row = np.arange(self.rows)
        at = _QUAD * (row % 8) + row // 8 + thread[:, :1] * (self.rows // 8)
        words = np.ascontiguousarray(np.take_along_axis(data.astype(np.uint32), at, axis=1))
        codes = words.view(np.uint8).reshape(len(words), self.rows, 4)
        wanted = byte[:, :1, None] + np.arange(self.count)
        return self.values[np.take_along_axis(codes, np.broadcast_to(
            wanted, (*codes.shape[:2], self.count)), axis=2)]  # fmt: skip

    def _check(self, name: str, found: NDArray[Any], legal: Sequence[int]) -> None:
        value = int(found.flat[0])
        if (found != value).any():
            raise DescriptorFault(f"{name} differs between the threads of a warp")
        if value not in legal:
            rule = f"must be {' or '.join(map(str, legal))} with {self.count} factors of a row"
            raise DescriptorFault(f"{name} = {value}: {rule}")


@dataclass(frozen=True)
class WarpScales:
    """The scale factors of A and B of one instruction."""

    a: _Factors
    b: _Factors

    @classmethod
    def of(
        cls, operands: Operands, at: Instruction, kind: str, vector: str, scale_type: str
    ) -> WarpScales:
        """The scales of an instruction: operands 4 to 7 are scale-data and {byte-id, thread-id}.
        Raises UnsupportedInstruction: kind, vector and type do not go together."""
        (m, n, _), types = KINDS[kind]
        count = types.get(scale_type, {}).get(vector)
        if count is None or len(at.operands) != 8:
            raise UnsupportedInstruction("not a form of block-scaled mma that the PTX ISA has", at)

        def factors(index: int, rows: int) -> _Factors:
            selector = operands.vector(at.operands[index + 1])
            if len(selector) != 2:
                raise UnsupportedInstruction("a selector is {byte-id, thread-id}", at)
            words = operands.vector(at.operands[index])  # ptxas takes {%r1}, too
            if len(words) != 1:
                raise UnsupportedInstruction("scale-data is one register", at)
            data = operands.reader(words[0], "b32", at)
            byte, thread = (operands.reader(text, "u16", at) for text in selector)
            return _Factors(data, byte, thread, rows, count, SCALES[scale_type])

        return cls(factors(4, m), factors(6, n))
