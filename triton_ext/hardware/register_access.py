"""The shared-memory requests by which warps store and load a tensor that they hold in registers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.hardware.banks import (
    ACCESS_BYTES,
    MATRIX_COUNTS,
    BankReport,
    checked_tile,
    warp_access,
)
from triton_ext.layouts.arguments import one_of
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.layouts.gf2 import powers_below
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.padded_shared import checked_paddings
from triton_ext.layouts.shared_encoding import Paddings, checked_layout, padded_offset


def _vector_bits(bases: Sequence[int], others: Sequence[int], most: int) -> list[int]:
    """The register bits whose offsets are 1, 2, 4, ...: those that one instruction can access.

    As Triton's ``largestVectorisation`` (``lib/Tools/LayoutUtils.cpp``): at most `most` elements,
    and no other basis may touch the low bits of the offset, or an access would be misaligned.
    """
    bits: list[int] = []
    for unit in powers_below(most):
        rest = [offset for offset in bases if offset != unit]
        if unit not in bases or any(offset & unit for offset in [*rest, *others]):
            break
        bits.append(bases.index(unit))
    return bits


def _register_offsets(
    registers: LinearLayout, shared: Any, element_bitwidth: Any
) -> tuple[list[int], list[int], list[int]]:
    """The offset, in elements, of each basis of registers, lanes and warps.

    Registers that repeat another one's element are left out.
    """
    shared = checked_tile(shared, element_bitwidth)
    in_dims = checked_layout("registers", registers).in_dims
    if not {"register", "lane"} <= set(in_dims) <= {"register", "lane", "warp"}:
        rule = "input dims must be 'register', 'lane' and perhaps 'warp'"
        raise LayoutError("registers", list(in_dims), rule)
    if in_dims["lane"] != WARP_THREADS:
        raise LayoutError("registers", in_dims, f"'lane' must have size {WARP_THREADS}")
    offsets = {
        name: [basis[0] for basis in bases]
        for name, bases in registers.invert_and_compose(shared).bases.items()
    }
    alone = registers.sublayout(["register"], list(registers.out_dims))
    repeats = alone.free_variable_masks()["register"]
    own = [o for bit, o in enumerate(offsets["register"]) if not repeats >> bit & 1]
    return own, offsets["lane"], offsets.get("warp", [])


@dataclass(frozen=True)
class RegisterAccess:
    """The requests by which all warps store or load a tensor: all alike but for a start.

    Attributes:
        access_bytes: how many bytes a lane accesses with one instruction.
        lanes: the offset of each lane, in elements.
        starts: for each instruction of each warp, what is XORed to the lanes' offsets, in elements;
            those of warp 0 come first.
        paddings: pairs (interval, padding), as in `register_access`.
    """

    access_bytes: int
    lanes: tuple[int, ...]
    starts: tuple[int, ...]
    warps: int
    element_bitwidth: int
    paddings: Paddings = ()

    @property
    def instructions(self) -> int:
        """How many instructions each warp executes."""
        return len(self.starts) // self.warps

    def request(self, index: int = 0) -> BankReport:
        """What the banks make of one request."""
        start = self.starts[index]
        return warp_access([self._byte(start ^ lane) for lane in self.lanes], self.access_bytes)

    def addresses(self, requests: Iterable[int], lane: int = 0) -> tuple[int, ...]:
        """The byte offsets that a lane accesses with some of the requests."""
        return tuple(self._byte(self.starts[index] ^ self.lanes[lane]) for index in requests)

    @cached_property
    def wavefronts(self) -> int:
        """The wavefronts of all requests together.

        Without padding each request has as many as the first: XORing all addresses with the same
        start moves words to other banks, but none out of another one's way.
        """
        if not self.paddings:
            return self.request().wavefronts * len(self.starts)
        return sum(request.wavefronts for request in self.requests)

    @cached_property
    def ideal_wavefronts(self) -> int:
        """How many wavefronts the requests would take without a conflict."""
        return self.request().ideal_wavefronts * len(self.starts)

    @cached_property
    def requests(self) -> tuple[BankReport, ...]:
        """A report for each instruction of each warp; those of warp 0 come first."""
        return tuple(map(self.request, range(len(self.starts))))

    @property
    def worst(self) -> BankReport:
        """The first of the requests with the most wavefronts."""
        return max(self.requests, key=lambda request: request.wavefronts)

    def _byte(self, offset: int) -> int:
        return int(padded_offset(offset, self.paddings)) * self.element_bitwidth // 8


def register_access(
    registers: LinearLayout,
    shared: LinearLayout,
    element_bitwidth: int,
    access_bytes: int | None = None,
    paddings: Sequence[tuple[int, int]] = (),
) -> RegisterAccess:
    """Every ld.shared or st.shared of a tensor that is held in registers. Raises LayoutError:
    layouts that do not go together; a wider access than the layouts allow.

    Args:
        registers: ``register``, ``lane`` and perhaps ``warp`` -> the tile's dimensions. Registers
            that repeat another one's element are not accessed again.
        shared: ``offset`` (elements) -> the same dimensions.
        element_bitwidth: 8, 16, 32 or 64.
        access_bytes: how many bytes a lane accesses with one instruction; left out: as many as
            are side by side in registers and in shared memory, at most 16, as Triton does.
        paddings: as in `chunk_access`.
    """
    own, lanes, warps = _register_offsets(registers, shared, element_bitwidth)
    paddings = checked_paddings(paddings)
    most = min([8 * max(ACCESS_BYTES) // element_bitwidth, *(n for pair in paddings for n in pair)])
    vector = _vector_bits(own, [*lanes, *warps], most)
    if paddings:  # Triton does not permute registers then
        vector = [bit for i, bit in enumerate(vector) if vector[: i + 1] == list(range(i + 1))]
    possible = element_bitwidth // 8 << len(vector)
    if access_bytes is None:
        access_bytes = possible
    one_of("access_bytes", access_bytes, ACCESS_BYTES)
    if not element_bitwidth <= 8 * access_bytes <= 8 * possible:
        raise LayoutError(
            "access_bytes",
            access_bytes,
            f"must be from {element_bitwidth // 8} (an element) to {possible}: what a thread has"
            " side by side in shared memory",
        )
    vector = vector[: (8 * access_bytes // element_bitwidth).bit_length() - 1]
    repeated = [offset for bit, offset in enumerate(own) if bit not in vector]
    return RegisterAccess(
        access_bytes,
        tuple(_span(lanes)),
        tuple(_span(repeated + warps)),
        1 << len(warps),
        element_bitwidth,
        paddings,
    )


def register_matrix_access(
    registers: LinearLayout, shared: LinearLayout, element_bitwidth: int, trans: bool = False
) -> RegisterAccess:
    """Every ldmatrix or stmatrix of a tensor that is held in registers.

    Four lanes hold a row of a matrix, 4 bytes each (PTX ISA, "ldmatrix"; seed 003, Sec. 2); with
    `trans`, eight lanes hold it, an element each. As many matrices as there are registers for, at
    most 4, are moved by one instruction. Raises LayoutError: layouts that do not go together, or
    not with these instructions.

    Args:
        registers, shared: as in `register_access`.
        element_bitwidth: 8, 16 or 32; with `trans` 16.
    """
    own, lanes, warps = _register_offsets(registers, shared, element_bitwidth)
    one_of("element_bitwidth", element_bitwidth, (16,) if trans else (8, 16, 32))
    chunk = 8 * CHUNK_BYTES // element_bitwidth
    if trans:
        vector, rows, side_by_side = [0], [*own[:1], *lanes[:2]], lanes[2:]
        rest = [*own, *lanes[:2], *warps]
    else:
        vector = _vector_bits(own, [*lanes, *warps], 32 // element_bitwidth)
        rows, side_by_side = lanes[2:], [*(own[bit] for bit in vector), *lanes[:2]]
        rest = [o for bit, o in enumerate(own) if bit not in vector] + rows + warps
    if side_by_side != list(powers_below(chunk)) or any(o % chunk for o in rest) or len(rows) < 3:
        held = "lanes 0, 4, 8, ... 28 an element each" if trans else "4 lanes 4 bytes each"
        rule = f"of each 16 bytes in shared memory, {held} must be held, in order"
        raise LayoutError("registers", registers, rule)
    repeated = [offset for bit, offset in enumerate(own) if bit not in vector]
    matrices = min(max(MATRIX_COUNTS), 1 << len(repeated)).bit_length() - 1
    return RegisterAccess(
        CHUNK_BYTES,
        tuple(_span(rows + repeated[:matrices])),
        tuple(_span(repeated[matrices:] + warps)),
        1 << len(warps),
        element_bitwidth,
    )


def _span(bases: Sequence[int]) -> Iterator[int]:
    """The XOR of each subset of the bases, the first basis fastest."""
    for index in range(1 << len(bases)):
        value = 0
        for bit, basis in enumerate(bases):
            if index >> bit & 1:
                value ^= basis
        yield value
