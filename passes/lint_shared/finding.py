"""What lint-shared says, and from which size on it says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from triton_ext.mlir.locations import Location
from triton_ext.passes.frame.base import Diagnostic

Kind = Literal[
    "permuted",
    "bank-conflict",
    "unswizzled-operand",
    "narrow-swizzle",
    "several-boxes",
    "padding",
    "misaligned-padding",
    "idle-part",
    "never-read",
    "shared-limit",
    "blocks-per-sm",
]


@dataclass(frozen=True)
class LintOptions:
    """Options of `lint-shared`.

    Attributes:
        min_conflict: a move is reported if it takes at least this many times the wavefronts that it
            needs.
        min_wavefronts: ... and costs a block, in all its warps, at least this many more wavefronts.
        near_limit: shared memory is reported from this fraction of a block's largest on.
        few_blocks: one more block on a multiprocessor is suggested up to this many blocks.
        block_margin: the largest fraction of its shared memory that a kernel is asked to save for
            one more block on a multiprocessor.
    """

    min_conflict: float = 2.0
    min_wavefronts: int = 8
    near_limit: float = 0.98
    few_blocks: int = 3
    block_margin: float = 0.05


@dataclass(frozen=True)
class Finding:
    """A conflict or a waste, and how to mend it.

    Attributes:
        kind: the kind of the finding, which ends the message, in brackets.
        value: the name of the shared-memory value, or "".
        help: the change that mends it, with numbers.
        location: the line in the kernel's source; None if it is not known.
    """

    kind: Kind
    value: str
    message: str
    help: str
    location: Location | None

    @property
    def diagnostic(self) -> Diagnostic:
        """As a warning."""
        return Diagnostic("warning", f"{self.message} [{self.kind}]", self.help, self.location)
