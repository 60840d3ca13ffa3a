"""Random layouts and encodings for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from triton_ext import LinearLayout, NVMMAShared
from triton_ext.layouts.encodings import ELEMENT_BITWIDTHS, SWIZZLE_BYTE_WIDTHS

IN_NAMES = ["offset", "block", "lane"]
OUT_NAMES = ["dim0", "dim1", "dim2"]


@st.composite
def sized_dims(draw, names, max_bits=3, min_dims=1):
    """Some of `names`, in order, with sizes."""
    chosen = draw(st.integers(min_dims, len(names)))
    return {name: 1 << draw(st.integers(0, max_bits)) for name in names[:chosen]}


@st.composite
def layouts(draw, in_dims=None, out_dims=None):
    """Any layout: random bases, zero and dependent ones included."""
    in_dims = in_dims if in_dims is not None else draw(sized_dims(IN_NAMES))
    out_dims = out_dims if out_dims is not None else draw(sized_dims(OUT_NAMES))
    basis = st.tuples(*(st.integers(0, size - 1) for size in out_dims.values()))
    bases = {
        name: [draw(basis) for _ in range(size.bit_length() - 1)] for name, size in in_dims.items()
    }
    return LinearLayout(bases, out_dims)


@st.composite
def surjective_layouts(draw, out_dims=None, extra_bits=3):
    """A layout that reaches every output: mixed-up unit bases, with further bases among them."""
    out_dims = out_dims if out_dims is not None else draw(sized_dims(OUT_NAMES))
    bits = sum(size.bit_length() - 1 for size in out_dims.values())
    columns = [1 << i for i in range(bits)]
    for _ in range(draw(st.integers(0, 3 * bits))):  # invertible column operations
        i, j = draw(st.integers(0, bits - 1)), draw(st.integers(0, bits - 1))
        if i != j:
            columns[i] ^= columns[j]
    for _ in range(draw(st.integers(0, extra_bits))):
        where = draw(st.integers(0, len(columns)))
        columns.insert(where, draw(st.integers(0, (1 << bits) - 1)))
    flat = LinearLayout({"offset": [(c,) for c in columns]}, {"all": 1 << bits})
    split = draw(st.integers(0, len(columns)))
    layout = flat.reshape_ins({"offset": 1 << split, "block": 1 << (len(columns) - split)})
    return layout.reshape_outs(out_dims)


@st.composite
def invertible_layouts(draw, out_dims=None):
    return draw(surjective_layouts(out_dims, extra_bits=0))


@st.composite
def cga_layouts(draw, rank):
    """A legal CGA layout: a permutation with broadcasts."""
    split = []
    while len(split) < 4 and draw(st.booleans()):
        split.append(draw(st.integers(-1, rank - 1)))  # -1: broadcast
    values = {dim: [1 << i for i in range(split.count(dim))] for dim in range(rank)}
    bases = []
    for dim in split:
        basis = [0] * rank
        if dim >= 0:
            basis[dim] = values[dim].pop(draw(st.integers(0, len(values[dim]) - 1)))
        bases.append(tuple(basis))
    return tuple(bases)


@st.composite
def nvmma_encodings(draw, max_rank=5):
    rank = draw(st.integers(1, max_rank))
    swizzle = draw(st.sampled_from(SWIZZLE_BYTE_WIDTHS)) if rank > 1 else 0
    bits = draw(st.sampled_from(ELEMENT_BITWIDTHS))
    fp4 = swizzle == 128 and bits == 8 and draw(st.booleans())
    return NVMMAShared(swizzle, bits, draw(st.booleans()), fp4, rank, draw(cga_layouts(rank)))


def shapes(rank, max_bits=9):
    return st.tuples(*[st.integers(0, max_bits).map(lambda bits: 1 << bits)] * rank)
