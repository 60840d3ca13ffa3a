"""Registers of warps <-> matrices, by the layouts of `triton_ext.hardware.register_fragments`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.errors import UnsupportedInstruction
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.hardware.register_fragments import Fragment
from triton_ext.ptx.parse import Instruction

Array = NDArray[Any]


@lru_cache(256)
def _orders(fragment: Fragment, tiles: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """For each element of a matrix, its number among the parts of registers; and the inverse."""
    layout = fragment.layout
    sizes = layout.in_dims
    coordinates = layout.apply(
        register=np.arange(sizes["register"])[:, None, None],
        thread=np.arange(sizes["thread"])[None, :, None],
        part=np.arange(sizes["part"])[None, None, :],
    )
    _, columns = fragment.shape
    tile = np.arange(tiles)[:, None, None, None] * columns
    numbers = coordinates["row"] * (columns * tiles) + coordinates["column"] + tile
    scatter = numbers.reshape(-1).astype(np.intp)
    gather = np.empty_like(scatter)
    gather[scatter] = np.arange(len(scatter))
    return gather, scatter


def to_matrices(fragment: Fragment, words: Array, dtype: Any, tiles: int = 1) -> Array:
    """The matrices that warps hold.

    Args:
        words: (registers, threads) of whole warps; `tiles` fragments, one after the other.
        dtype: the elements' type.
        tiles: how many fragments lie side by side along the columns.

    Returns:
        (warps, rows, columns).
    """
    rows, columns = fragment.shape
    count, threads = words.shape
    parts = np.ascontiguousarray(words).view(dtype).reshape(count, threads // WARP_THREADS, -1)
    each = np.ascontiguousarray(parts.swapaxes(0, 1)).reshape(threads // WARP_THREADS, -1)
    gather, _ = _orders(fragment, tiles)
    return each[:, gather].reshape(-1, rows, columns * tiles)


def to_registers(fragment: Fragment, matrices: Array, word: Any, tiles: int = 1) -> Array:
    """The registers that hold matrices: the inverse of `to_matrices`.

    Args:
        matrices: (warps, rows, columns).
        word: the dtype of a register.

    Returns:
        (registers, threads).
    """
    warps = len(matrices)
    _, scatter = _orders(fragment, tiles)
    each = matrices.reshape(warps, -1)[:, scatter]
    count = tiles << len(fragment.registers)
    parts = each.reshape(warps, count, -1).swapaxes(0, 1)
    return np.ascontiguousarray(parts).reshape(count, -1).view(word)


@dataclass(frozen=True)
class RegisterRows:
    """The registers of a vector operand, read and written together.

    Attributes:
        key: their register file.
        rows: their rows in it.
        count: their number.
    """

    key: str
    rows: slice | NDArray[np.intp]
    count: int

    @classmethod
    def of(
        cls,
        operands: Operands,
        text: str,
        at: Instruction,
        count: int,
        bits: int = 32,
        *,
        written: bool = False,
    ) -> RegisterRows:
        """The registers that `text` names, ``{a, b, ...}`` or a single one. Raises
        UnsupportedInstruction: not `count` registers, or not of `bits` bits."""
        names: Sequence[str] = operands.vector(text)
        if len(names) != count:
            raise UnsupportedInstruction(f"{len(names)} registers in {text}, not {count}", at)
        key, rows = operands.rows(names, at, written=written)
        if key != f"b{bits}":
            raise UnsupportedInstruction(f"{text}: the registers must have {bits} bits", at)
        return cls(key, rows, count)

    def read(self, cta: Cta, lanes: Lanes) -> Array:
        """Their values, (registers, lanes)."""
        file = cta.files[self.key]
        values: Array = (
            file[self.rows, lanes] if isinstance(lanes, slice) else file[self.rows][:, lanes]
        )
        return values

    def write(self, cta: Cta, lanes: Lanes, values: Array) -> None:
        """Set their values, (registers, lanes)."""
        rows = self.rows
        if not isinstance(lanes, slice) and not isinstance(rows, slice):
            rows = rows[:, None]
        cta.files[self.key][rows, lanes] = values
