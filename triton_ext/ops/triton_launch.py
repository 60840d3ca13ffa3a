"""The launch of a Triton kernel: the first one by its JIT, which compiles, later ones without."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from triton_ext.compat import LAUNCH_OPTIONS, DirectLaunch, needs_the_jit


class TritonLaunch:
    """A kernel with its compile-time arguments on one GPU.

    Its parameters must be such as Triton does not specialize, but for floats. It starts while the
    kernel before it ends, and waits for it itself (``griddepcontrol``).
    """

    __slots__ = ("_constants", "_direct", "_index", "_kernel", "_options")

    def __init__(
        self, index: int | None, kernel: Any, constants: Mapping[str, Any], **options: int
    ) -> None:
        """Prepare it.

        Args:
            index: CUDA's number of the GPU; None if it is emulated.
            constants: the last parameters, by name.
            options: of the compilation.
        """
        self._index, self._kernel, self._constants = index, kernel, constants
        self._options = {**LAUNCH_OPTIONS, **options, "launch_pdl": True}
        self._direct: DirectLaunch | None = None

    def __call__(self, grid: tuple[int, int, int], *arguments: Tensor | float) -> None:
        """Launch on the current stream; the GPU must be the current one. `arguments`: the other
        parameters, in their order; of tensors it gets the addresses."""
        if self._direct is not None and not needs_the_jit():
            self.at(grid, *(x.data_ptr() if isinstance(x, Tensor) else x for x in arguments))
            return
        compiled = self._kernel[grid](*arguments, **self._constants, **self._options)
        if self._index is not None and not needs_the_jit():
            with contextlib.suppress(LookupError):  # it needs more than its arguments
                self._direct = DirectLaunch(compiled)

    def at(self, grid: tuple[int, int, int], *arguments: float) -> bool:
        """Whether it was launched by addresses in place of tensors, as it is from the second time
        on.
        """
        direct = self._direct
        if direct is None or needs_the_jit():
            return False
        stream = direct.current_stream(self._index)
        direct(grid, stream, [*arguments])
        return True
