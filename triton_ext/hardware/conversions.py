"""How Triton converts a tensor from one distributed layout to another: ``ttg.convert_layout``.

An element that stays in its thread costs nothing but perhaps a permutation of bytes; one that stays
in its warp is shuffled, if that takes one exchange of register and lane bits at most; everything
else goes through shared memory, in a layout of `triton_ext.hardware.scratch_layout`.

Source: Triton, ``minimalCvtLayout``, ``cvtReordersRegisters``, ``cvtNeedsWarpShuffle``
(``lib/Analysis/Utility.cpp``), ``ConvertLayoutOpToLLVM.cpp`` (``lib/Conversion/TritonGPUToLLVM``
and ``third_party/nvidia/lib/TritonNVIDIAGPUToLLVM``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.hardware.register_access import register_access, register_matrix_access
from triton_ext.hardware.register_moves import Direction, PlannedMove
from triton_ext.hardware.scratch_layout import (
    TRANSPOSED,
    VECTORS,
    Instruction,
    ScratchLayout,
    instructions,
    scratch_layout,
)
from triton_ext.hardware.warp_shuffles import warp_permutation
from triton_ext.layouts.arguments import one_of
from triton_ext.layouts.cluster import block_bases, within_block
from triton_ext.layouts.encodings import ELEMENT_BITWIDTHS, SharedLinear
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.shared_encoding import checked_layout

Way = Literal["nothing", "registers", "shuffles", "shared memory", "cluster"]
"""By what a conversion is done; ``cluster``: through the shared memory of several blocks."""
BROADCASTS_READ = (3, 9)
"""The release of Triton since which a warp reads its own copy of what several hold."""
REMOTE_LOAD = "ld.shared::cluster"
_DIMS = ("register", "lane", "warp", "block")


@dataclass(frozen=True)
class Scratch:
    """The way of a tensor through shared memory.

    Attributes:
        encoding: the layout of the tensor there, if it were whole.
        bytes: what a block needs at once; in a cluster, Triton 3.7 takes as much for each block.
        rounds: into how many parts the tensor is divided, which follow each other there.
        within_warps: whether only the threads of a warp wait for each other in between.
        store, load: the instructions of all rounds.
    """

    encoding: SharedLinear
    bytes: int
    rounds: int
    within_warps: bool
    store: PlannedMove
    load: PlannedMove


@dataclass(frozen=True)
class PlannedConversion:
    """The instructions of one conversion.

    Attributes:
        way: by what it is done.
        bytes: what is moved between the threads of a block.
        warps: of a block.
        shuffles: shfl.sync instructions of a warp.
        scratch: how it goes through shared memory, if it does.
    """

    way: Way
    bytes: int
    warps: int
    shuffles: int = 0
    scratch: Scratch | None = None

    @property
    def moves(self) -> tuple[PlannedMove, ...]:
        """The store and the load of which the banks are modelled: not a load from other blocks."""
        if self.scratch is None:
            return ()
        return (self.scratch.store, self.scratch.load)[: 1 if self.way == "cluster" else 2]

    @property
    def instructions(self) -> dict[str, int]:
        """How many of which instruction a warp executes, as `PlannedMove.mnemonic` names them."""
        found = {"shfl.sync": self.shuffles} if self.shuffles else {}
        if self.scratch is not None:
            for move in (self.scratch.store, self.scratch.load):
                found[move.mnemonic] = move.pattern.instructions
        return found

    @property
    def wavefronts(self) -> int:
        """All wavefronts of a block's `moves`."""
        return sum(move.pattern.wavefronts for move in self.moves)

    @property
    def ideal_wavefronts(self) -> int:
        """As many as there would be without a bank conflict."""
        return sum(move.pattern.ideal_wavefronts for move in self.moves)


def _checked(argument: str, layout: LinearLayout) -> LinearLayout:
    """A distributed layout with all of `_DIMS`."""
    bases = checked_layout(argument, layout).bases
    if not {"register", "lane"} <= set(bases) <= set(_DIMS):
        raise LayoutError(argument, list(bases), f"input dims must be among {', '.join(_DIMS)}")
    if layout.in_dims["lane"] != WARP_THREADS:
        raise LayoutError(argument, layout.in_dims, f"'lane' must have size {WARP_THREADS}")
    named = {name: bases.get(name, []) for name in _DIMS}
    nonzero = [basis for vectors in named.values() for basis in vectors if any(basis)]
    single = all(sum(map(bool, basis)) == 1 and max(basis).bit_count() == 1 for basis in nonzero)
    if not single or len(set(nonzero)) < len(nonzero) or not layout.is_surjective():
        raise LayoutError(
            argument,
            layout,
            "must be a distributed layout: each basis 0, or a power of two along one dimension,"
            " each of them once",
        )
    return LinearLayout(named, layout.out_dims)


def _flat(layout: LinearLayout) -> LinearLayout:
    return layout.reshape_outs({"flat": layout.total_out_size}).remove_zero_bases("register")


def _trivial_over(conversion: LinearLayout, dim: str) -> bool:
    """Whether a dimension maps to itself, and no other one to or from it."""
    names = list(conversion.out_dims)
    others = [name for name in names if name != dim]
    own = conversion.bases[dim]
    at = names.index(dim)
    return (
        all(basis[at] == 1 << bit for bit, basis in enumerate(own))
        and conversion.sublayout_is_zero([dim], others)
        and conversion.sublayout_is_zero(others, [dim])
    )


def _moved_dims(source: LinearLayout, target: LinearLayout) -> tuple[str, ...]:
    """Between which of `_DIMS` elements move: those that are left when block, warp, lane and
    register, in that order, are each taken away where they stay as they are."""
    conversion = target.invert_and_compose(source)
    left = list(_DIMS)
    while left and _trivial_over(conversion, left[-1]):
        left.pop()
        conversion = conversion.sublayout(left, left)
    return tuple(left)


def _reads_copies(source: LinearLayout, target: LinearLayout) -> bool:
    """Whether each warp holds, before, all that it is to hold, by lanes where warps differ."""
    ours, theirs = _flat(source).bases, _flat(target).bases
    lanes = {*ours["lane"], (0,)}
    held = lanes.union(ours["register"])
    return held.issuperset(theirs["register"] + theirs["lane"]) and all(
        before == after or (before == (0,) and after in lanes)
        for name in ("warp", "block")
        for before, after in zip(ours[name], theirs[name], strict=True)
    )


def plan_conversion(
    source: LinearLayout,
    target: LinearLayout,
    element_bitwidth: int,
    *,
    arch: int = 90,
    release: tuple[int, int] = (3, 9),
) -> PlannedConversion:
    """How a tensor is converted from one distributed layout to another.

    Args:
        source, target: ``register``, ``lane``, ``warp`` (and ``block``) -> the tensor's dimensions.
        element_bitwidth: 1 to 64; less than 8 are stored as bytes.
        arch: the compute capability, times ten: sm_90 brought stmatrix.
        release: of Triton, (major, minor).

    Raises:
        LayoutError: layouts that are no distributed ones, of different shapes, or of different
            numbers of warps or blocks.
    """
    one_of("element_bitwidth", element_bitwidth, (1, 2, 4, *ELEMENT_BITWIDTHS))
    source, target = _checked("source", source), _checked("target", target)
    if source.out_dims != target.out_dims:
        rule = f"must be of the source's shape, {source.out_dims}"
        raise LayoutError("target", target.out_dims, rule)
    for name in ("warp", "block"):
        if source.in_dims[name] != target.in_dims[name]:
            rule = f"{name!r} must have size {source.in_dims[name]}, as in the source"
            raise LayoutError("target", target.in_dims, rule)
    warps, bits = source.in_dims["warp"], max(8, element_bitwidth)
    moved = _moved_dims(source, target)
    if release >= BROADCASTS_READ and len(moved) > 2 and _reads_copies(source, target):
        moved = _DIMS[:2]
    if len(moved) < 2:
        return PlannedConversion("registers" if moved else "nothing", 0, warps)
    size = source.total_out_size * bits // 8 >> len(block_bases(source))
    flat = _flat(source), _flat(target)
    if moved == ("register", "lane"):
        permutation = warp_permutation(*flat)
        if permutation.transpositions < 2:
            return PlannedConversion("shuffles", size, warps, permutation.shuffles(bits))
    scratch = _scratch(flat, bits, arch, source.out_dims, moved)
    way: Way = "cluster" if scratch.load.instruction == REMOTE_LOAD else "shared memory"
    return PlannedConversion(way, size, warps, scratch=scratch)


def _reads_others(source: LinearLayout, target: LinearLayout) -> bool:
    """Whether a block loads what another one stored."""
    through = target.invert_and_compose(source)
    at = list(through.out_dims).index("block")
    own = source.bases["block"]
    for name, bases in through.bases.items():
        for i, basis in enumerate(bases):
            if basis[at] != (1 << i if name == "block" and any(own[i]) else 0):
                return True
    return False


def _scratch(
    flat: tuple[LinearLayout, LinearLayout],
    bits: int,
    arch: int,
    shape: dict[str, int],
    moved: tuple[str, ...],
) -> Scratch:
    stores = instructions(bits, matrices=arch >= 90)
    loads = instructions(bits, matrices="block" not in moved)
    found = scratch_layout(*flat, bits, stores, loads)
    whole = {"offset": [(value,) for value in found.offset + found.rounds]}
    if found.block:
        whole["block"] = [(value,) for value in found.block]
    layout = LinearLayout(whole, {"flat": flat[0].total_out_size})
    repeats = any(each.free_variable_masks()["warp"] for each in flat)
    load = _move("load", found.load, found, flat[1], bits)
    if found.block and _reads_others(*flat):
        load = replace(load, instruction=REMOTE_LOAD)
    return Scratch(
        encoding=SharedLinear.from_linear_layout(layout.reshape_outs(shape)),
        bytes=bits // 8 << len(found.offset),
        rounds=1 << len(found.rounds),
        within_warps=load.instruction != REMOTE_LOAD
        and (flat[0].in_dims["warp"] == 1 or not (repeats or "warp" in moved)),
        store=_move("store", found.store, found, flat[0], bits),
        load=load,
    )


def _move(
    direction: Direction,
    instruction: Instruction,
    scratch: ScratchLayout,
    registers: LinearLayout,
    bits: int,
) -> PlannedMove:
    """The stores or loads of all rounds."""
    size = 1 << len(scratch.offset + scratch.block)
    memory = [(value,) for value in (*scratch.offset, *scratch.block, *scratch.rounds)]
    offsets = within_block(registers).invert_and_compose(LinearLayout({"offset": memory}, ["flat"]))
    own = [basis for basis in offsets.bases["register"] if basis[0] < size]
    held = LinearLayout({**offsets.bases, "register": own}, {"offset": size})
    tile = LinearLayout.identity({"offset": size})
    if instruction is VECTORS:
        pattern = register_access(held, tile, bits)
    else:
        pattern = register_matrix_access(held, tile, bits, instruction is TRANSPOSED)
    each, rounds = pattern.instructions, 1 << len(scratch.rounds)
    starts = [
        start
        for warp in range(pattern.warps)
        for start in pattern.starts[warp * each : (warp + 1) * each] * rounds
    ]
    name = "st" if direction == "store" else "ld"
    name += ".shared" if instruction is VECTORS else "matrix"
    pattern = replace(pattern, starts=tuple(starts))
    return PlannedMove(direction, name, instruction is TRANSPOSED, pattern)
