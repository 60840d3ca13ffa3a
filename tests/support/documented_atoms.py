"""The swizzle atoms of the documents, and the tiles that the seeds put beside them."""

from __future__ import annotations

import itertools

from triton_ext import LinearLayout
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.encodings import ELEMENT_BITWIDTHS, SWIZZLE_BYTE_WIDTHS

# The pictures of seed 003, Sec. 3 ("Swizzle None" ... "Swizzle 128B"): for each 128-byte line of
# shared memory, the numbers of the 16-byte chunks in it. K-major and MN-major look alike.
CHUNK_PICTURES = {
    0: [
        [0, 1, 2, 3, 4, 5, 6, 7],
    ],
    32: [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [9, 8, 11, 10, 13, 12, 15, 14],
    ],
    64: [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [9, 8, 11, 10, 13, 12, 15, 14],
        [18, 19, 16, 17, 22, 23, 20, 21],
        [27, 26, 25, 24, 31, 30, 29, 28],
    ],
    128: [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [9, 8, 11, 10, 13, 12, 15, 14],
        [18, 19, 16, 17, 22, 23, 20, 21],
        [27, 26, 25, 24, 31, 30, 29, 28],
        [36, 37, 38, 39, 32, 33, 34, 35],
        [45, 44, 47, 46, 41, 40, 43, 42],
        [54, 55, 52, 53, 50, 51, 48, 49],
        [63, 62, 61, 60, 59, 58, 57, 56],
    ],
}  # fmt: skip
ATOMS = [
    SwizzleAtom(major, swizzle, bits)
    for major, swizzle, bits in itertools.product(
        ("K", "MN"), SWIZZLE_BYTE_WIDTHS, ELEMENT_BITWIDTHS
    )
]


def atom_id(atom):
    return f"{atom.major}-{atom.swizzle_byte_width}B-{atom.element_bitwidth}bit"


def row_major(rows, columns):
    """The "smem linear layout" of seed 003, Sec. 4: row after row."""
    layout = LinearLayout.identity_1d(columns, "offset", "dim1")
    layout = layout * LinearLayout.identity_1d(rows, "offset", "dim0")
    return layout.transpose_outs(["dim0", "dim1"])


def subtiles(layout, bits, major):
    """The corners of all subtiles of 8x16B or 16Bx8."""
    chunk = 128 // bits
    steps = (8, chunk) if major == "K" else (chunk, 8)
    sizes = layout.out_dims.values()
    return itertools.product(*(range(0, s, step) for s, step in zip(sizes, steps, strict=True)))
