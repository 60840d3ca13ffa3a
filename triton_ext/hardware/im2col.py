"""TMA tensor maps of im2col mode: columns of pixels, as a convolution reads them.

Sources: CUDA driver API, cuTensorMapEncodeIm2col, for the rules; PTX ISA, "Tensors", "im2col mode"
("Bounding Box", "Im2col Offset", "Traversal-Stride"), for which pixels a column has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from triton_ext.display import Displayed
from triton_ext.errors import LayoutError
from triton_ext.hardware.tensor_map import Interleave, TensorMap
from triton_ext.layouts.arguments import integers
from triton_ext.layouts.nvmma_shared import TMA_BOX_LIMIT

MAX_PIXELS = 1024
MAX_OFFSET = {3: (1 << 16) - 1, 4: (1 << 8) - 1, 5: (1 << 5) - 1}
"""By the tensor's rank: what an offset of the instruction may be at most."""


@dataclass(frozen=True)
class Im2colMap(Displayed):
    """The arguments of ``cuTensorMapEncodeIm2col``: a tensor NWC, NHWC or NDHWC, innermost first.

    Args:
        tensor: the tensor (channels, width, height, depth, images), its strides and element
            strides; its box is one pixel: (channels of a pixel, 1, ...).
        lower, upper: the corners of the bounding box in which pixels are walked, width first: from
            `lower` to the extent plus `upper`, that not included.
        pixels: of a column, 1 to 1024.

    Raises:
        LayoutError: an argument is illegal.
    """

    tensor: TensorMap
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    pixels: int

    def __post_init__(self) -> None:
        rank = self.tensor.rank
        if not 3 <= rank <= 5 or self.tensor.interleave != Interleave.NONE:
            raise LayoutError("tensor", self.tensor, "must have 3 to 5 dimensions, no interleave")
        if self.tensor.box_dims[1:] != (1,) * (rank - 1):
            raise LayoutError("tensor", self.tensor.box_dims, "its box must be one pixel")
        half = (MAX_OFFSET[rank] + 1) // 2
        for name in ("lower", "upper"):
            corner = integers(name, getattr(self, name), rank - 2, "one a dimension of the image")
            if not all(-half <= each < half for each in corner):
                raise LayoutError(name, corner, f"must lie in [{-half}, {half})")
            object.__setattr__(self, name, corner)
        if not 1 <= self.pixels <= MAX_PIXELS:
            raise LayoutError("pixels", self.pixels, f"must be 1 to {MAX_PIXELS}")
        if min(self.walked) < 1:
            raise LayoutError("upper", self.upper, "the bounding box must not be empty")

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return self.tensor.rank

    @property
    def walked(self) -> tuple[int, ...]:
        """How many pixels of the bounding box are walked along each dimension of the image."""
        t = self.tensor
        sides = zip(
            t.global_dims[1:-1], self.lower, self.upper, t.element_strides[1:], strict=False
        )
        return tuple(-(-(size + high - low) // step) for size, low, high, step in sides)

    @cached_property
    def column(self) -> TensorMap:
        """A column in shared memory: a box of rows of channels, a pixel each."""
        parts = next((n for n in range(1, MAX_PIXELS) if self.pixels % n == 0
                      and self.pixels // n <= TMA_BOX_LIMIT), 1)  # fmt: skip
        box = (self.tensor.box_dims[0], self.pixels // parts, parts)[: 2 if parts == 1 else 3]
        strides = (self.tensor.global_strides[0],) * (len(box) - 1)
        return replace(
            self.tensor, global_dims=(self.tensor.global_dims[0], *box[1:]),
            global_strides=strides, box_dims=box, element_strides=(),
        )  # fmt: skip

    def pixel_offsets(
        self, coordinates: Sequence[int], offsets: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Where the pixels of a column are.

        Args:
            coordinates: channel, width, height, depth, image of the first pixel, without offsets:
                one that is walked.
            offsets: added to each position in the image, width first: the filter's tap.

        Returns:
            Offsets from the tensor's first element, in bytes, channels left out; and which of the
            pixels the tensor has.

        Raises:
            LayoutError: the first pixel is none that is walked, or an offset is out of range.
        """
        steps, walked = self.tensor.element_strides[1:-1], self.walked
        image = coordinates[1:-1]
        if len(offsets) != len(image) or not all(
            0 <= each <= MAX_OFFSET[self.rank] for each in offsets
        ):
            rule = f"must be {len(image)} numbers from 0 to {MAX_OFFSET[self.rank]}"
            raise LayoutError("offsets", tuple(offsets), rule)
        first = []
        for at, low, step, count in zip(image, self.lower, steps, walked, strict=True):
            number, rest = divmod(at - low, step)
            if rest or not 0 <= number < count:
                last = low + (count - 1) * step
                rule = f"the pixels that are walked are {low} to {last}, in steps of {step}"
                raise LayoutError("coordinates", tuple(coordinates), rule)
            first.append(number)
        number, scale = 0, 1
        for each, count in zip(first, walked, strict=True):
            number, scale = number + each * scale, scale * count
        inside = np.ones(self.pixels, np.bool_)
        found = np.zeros(self.pixels, np.int64)
        left: NDArray[np.int64] = number + np.arange(self.pixels)
        for axis, (low, step, count, offset) in enumerate(
            zip(self.lower, steps, walked, offsets, strict=True), 1
        ):
            left, index = np.divmod(left, count)
            position = low + index * step + offset
            inside &= (position >= 0) & (position < self.tensor.global_dims[axis])
            found += position * self.tensor.global_strides[axis - 1]
        images = coordinates[-1] + left
        inside &= (images >= 0) & (images < self.tensor.global_dims[-1])
        return found + images * self.tensor.global_strides[-1], inside

    @property
    def transaction_bytes(self) -> int:
        """What a copy adds to an mbarrier's complete-tx count."""
        return self.column.row_bytes * math.prod(self.column.copied_shape[1:])
