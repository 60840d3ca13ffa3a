"""How many shuffles Triton moves a tensor with between the threads of a warp.

Source: Triton, ``getWarpLayoutConvertDecomposition`` (``lib/Analysis/Utility.cpp``),
``transferWithinWarp`` (``lib/Conversion/TritonGPUToLLVM/ConvertLayoutOpToLLVM.cpp``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from triton_ext.layouts.linear_layout import LinearLayout

_REGISTER_BITS = 32
_Bit = tuple[str, int]


@dataclass(frozen=True)
class WarpPermutation:
    """A conversion within warps: a permutation of the bits of register and lane.

    Attributes:
        register_bits: how many bits number the registers, of the side that has more.
        transpositions: how many bits of the register trade places with bits of the lane.
        moves_lanes: whether lanes change places besides.
    """

    register_bits: int
    transpositions: int
    moves_lanes: bool

    def shuffles(self, element_bitwidth: int) -> int:
        """The shfl.sync instructions of a warp.

        Elements of 8 and 16 bits are packed into registers of 32, as far as the transpositions
        leave registers for it; those of 64 bits take two.
        """
        packed = max(1, min(4, _REGISTER_BITS // element_bitwidth)).bit_length() - 1
        free = self.register_bits - self.transpositions
        registers = 1 << (self.register_bits - min(packed, free))
        moved = registers if self.moves_lanes else registers - (registers >> self.transpositions)
        return moved * max(1, element_bitwidth // _REGISTER_BITS)


def warp_permutation(source: LinearLayout, target: LinearLayout) -> WarpPermutation:
    """The permutation of a conversion that leaves each element in its warp. `source`, `target`:
    ``register``, ``lane``, ``warp`` -> ``flat``, each basis 0 or a power of two, without registers
    that repeat others."""
    sides = [
        {name: [basis[0] for basis in layout.bases[name]] for name in ("register", "lane")}
        for layout in (source, target)
    ]
    for name in ("register", "lane"):
        size = max(len(side[name]) for side in sides)
        for side in sides:
            side[name] += [0] * (size - len(side[name]))
    held = {value for side in sides[1].values() for value in side}
    # Lanes of the source that are warps of the target: each warp takes its own part of a copy.
    by_warp = [value for value in sides[0]["lane"] if value not in held | {0}]
    for name, values in sides[0].items():
        sides[0][name] = [value if value in held else 0 for value in values]
    step = _permutation(*sides)
    transpositions, moves_lanes = 0, bool(by_warp)
    for cycle in _cycles(step):
        kinds = [name for name, _ in cycle]
        # In a cycle of both, each run of lanes is one transposition, and a cycle of its own.
        transpositions += sum(
            kinds[i] == "register" and kinds[(i + 1) % len(kinds)] == "lane"
            for i in range(len(kinds))
        )
        runs = sum(
            kinds[i] == "lane" and kinds[(i + 1) % len(kinds)] == "lane" for i in range(len(kinds))
        )
        moves_lanes |= runs > 0 and len(cycle) > 1
    return WarpPermutation(len(sides[0]["register"]), transpositions, moves_lanes)


def _permutation(
    source: Mapping[str, Sequence[int]], target: Mapping[str, Sequence[int]]
) -> dict[_Bit, _Bit]:
    """Where each bit of the source goes: where the target has it; of the rest, as few as can be
    move."""
    at = {
        value: (name, index)
        for name, values in target.items()
        for index, value in enumerate(values)
        if value
    }
    step: dict[_Bit, _Bit] = {}
    empty: list[_Bit] = []
    for name, values in source.items():
        for index, value in enumerate(values):
            if value:
                step[name, index] = at[value]
            elif not target[name][index]:
                step[name, index] = (name, index)
            else:
                empty.append((name, index))
    taken = set(step.values())
    bits = [(name, i) for name, values in target.items() for i in range(len(values))]
    step |= dict(zip(empty, [bit for bit in bits if bit not in taken], strict=True))
    return step


def _cycles(step: Mapping[_Bit, _Bit]) -> Iterator[list[_Bit]]:
    seen: set[_Bit] = set()
    for start in step:
        cycle, bit = [], start
        while bit not in seen:
            seen.add(bit)
            cycle.append(bit)
            bit = step[bit]
        if cycle:
            yield cycle
