"""Where a release of Triton converts an NVMMAShared encoding wrongly.

`KNOWN_FAULTS` is the one table of these cases. Each entry computes what the release returns, so
that a comparison with Triton can demand exactly that, and nothing else, where we differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from triton_ext.layouts.cluster import cluster_layout, shape_per_cta, standard_out_dims
from triton_ext.layouts.encodings import NVMMAShared
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.nvmma_shared import nvmma_shared_to_linear_layout, tma_box_shape
from triton_ext.layouts.triton.converted import Converted


@dataclass(frozen=True)
class KnownFault:
    """A wrong conversion in some releases.

    Attributes:
        versions: the (major, minor) versions of Triton that have it.
        title: the case, in a few words.
        why_wrong: what is wrong with what is returned, and where it comes from.
        applies: whether an encoding is of this kind; what is returned may still be right.
        returns: what these releases return for a shape and such an encoding.
        example: a shape and an encoding for which it is wrong.
    """

    versions: tuple[tuple[int, int], ...]
    title: str
    why_wrong: str
    applies: Callable[[NVMMAShared], bool]
    returns: Callable[[Sequence[int], NVMMAShared], LinearLayout]
    example: tuple[tuple[int, ...], NVMMAShared]


def _ignores_transposition(shape: Sequence[int], encoding: NVMMAShared) -> LinearLayout:
    return nvmma_shared_to_linear_layout(shape, replace(encoding, transposed=False))


def _permutes_backwards(shape: Sequence[int], encoding: NVMMAShared) -> LinearLayout:
    """The box's coordinates, labelled with the inverse of the permutation that was meant.

    The box is built with the dimensions in reverse order, and the permutation for the standard
    order is applied to it. The box then has the wrong extents, and is made to fit the shape by
    repeating what is too small and cutting off (zeroing) what is too large.
    """
    names = list(standard_out_dims(shape))
    per_cta = dict(zip(names, shape_per_cta(encoding.cga_layout, shape), strict=True))
    sizes = tma_box_shape(tuple(per_cta.values()), encoding)
    rows = [*sizes[1:], sizes[0]]
    layout = LinearLayout.box("offset", dict(reversed([*zip(names, rows, strict=True)])))
    order = [len(names) - 1, *range(len(names) - 1)]
    layout = LinearLayout(
        {"offset": [[basis[i] for i in order] for basis in layout.bases["offset"]]},
        list(layout.out_dims),
    )
    for name, size in layout.out_dims.items():
        repeats = max(1, per_cta[name] // size)
        layout = layout * LinearLayout.identity_1d(repeats, "offset", name)
    layout = layout.transpose_outs(names)
    offsets = [
        [value if value < per_cta[name] else 0 for name, value in zip(names, basis, strict=True)]
        for basis in layout.bases["offset"]
    ]
    blocks = cluster_layout(encoding.cga_layout, shape).bases["block"]
    block_bases = [
        [value * size for value, size in zip(basis, per_cta.values(), strict=True)]
        for basis in blocks
    ]
    bases = {"offset": offsets, "block": block_bases} if block_bases else {"offset": offsets}
    return LinearLayout(bases, standard_out_dims(shape))


KNOWN_FAULTS: tuple[KnownFault, ...] = (
    KnownFault(
        versions=((3, 7),),
        title="swizzle 0: `transposed` is ignored",
        why_wrong=(
            "the layout of the non-transposed encoding is returned, so elements of the last"
            " dimension lie side by side where the encoding says those of the first"
            " (mended in Triton 3.8, PR 10453)"
        ),
        applies=lambda encoding: encoding.transposed and not encoding.swizzle_byte_width,
        returns=_ignores_transposition,
        example=((16, 64), NVMMAShared(0, 16, transposed=True)),
    ),
    KnownFault(
        versions=((3, 8), (3, 9)),
        title="swizzle 0, transposed, rank 3 to 5: dimensions are permuted the wrong way round",
        why_wrong=(
            "the contiguous dimension is not the first one; unless the extents happen to agree,"
            " the layout also has zero bases and more offsets than there are elements:"
            " transposeLinearLayout permutes by position, and is given a layout whose dimensions"
            " stand in reverse order"
        ),
        applies=lambda encoding: (
            encoding.transposed and not encoding.swizzle_byte_width and encoding.rank >= 3
        ),
        returns=_permutes_backwards,
        example=((2, 64, 64), NVMMAShared(0, 16, transposed=True, rank=3)),
    ),
)


def expected_from_triton(
    version: tuple[int, int], shape: Sequence[int], encoding: NVMMAShared
) -> tuple[LinearLayout, KnownFault | None]:
    """What a release of Triton returns, and the fault behind it if that is not the right layout.
    Raises LayoutError: an illegal shape; Triton aborts or returns nonsense."""
    right = nvmma_shared_to_linear_layout(shape, encoding)
    for fault in KNOWN_FAULTS:
        if version in fault.versions and fault.applies(encoding):
            returned = fault.returns(shape, encoding)
            return returned, fault if returned != right else None
    return right, None


def known_fault(
    version: tuple[int, int], shape: Sequence[int], encoding: NVMMAShared, answer: Converted
) -> KnownFault | None:
    """The fault of a release that gives exactly this wrong answer. Raises LayoutError: an illegal
    shape."""
    expected, fault = expected_from_triton(version, shape, encoding)
    return fault if answer.has_bases_of(expected) else None
