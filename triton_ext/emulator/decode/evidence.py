"""What an instruction's behaviour rests on: a GPU, kernels of others, or documents alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Evidence:
    """A kind of evidence.

    Attributes:
        label: its name in ``docs/reference/instructions.md``.
        meaning: what was seen.
    """

    label: str
    meaning: str


SILICON = Evidence("silicon", "the same PTX gave the same bits on an H100 and here")
BOUNDED = Evidence(
    "silicon (bounds)",
    "the same PTX gave results on an H100 and here that differ by no more than the PTX ISA allows"
    " an approximation",
)
COMPILED = Evidence(
    "silicon (kernels)", "compiled kernels that use it gave the same results on an H100 and here"
)
KERNELS = Evidence(
    "kernels",
    "kernels of others that are known to be good come out right: NVIDIA's CuTe DSL, liger-kernel,"
    " fla-core, Triton's Gluon tutorials",
)
DOCUMENT = Evidence("document", "the PTX ISA and CUTLASS alone")
NO_EFFECT = Evidence("no effect", "its operands are checked, and it changes no values")
REFUSED = Evidence("refused", "it is refused, with a reason")

EVIDENCE = (SILICON, BOUNDED, COMPILED, KERNELS, DOCUMENT, NO_EFFECT, REFUSED)
"""The kinds, from the strongest to none."""
