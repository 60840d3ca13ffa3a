"""With which arguments a kernel and its TTGIR are run."""

from __future__ import annotations

import itertools

from triton_ext.mlir.module import MlirModule, Operation
from triton_ext.passes.verify_descriptors.ptx_sums import Launch


def launches(module: MlirModule) -> list[Launch]:
    """Choices of arguments, each of which the next one may help out.

    First tensors of a few tiles, so that loops run a few times; then integers that are how often
    loops run, but for those that are known to be multiples of 16; then large tensors.
    """
    short, counts, large = {}, {}, {}
    for operation in module.operations:
        if operation.name != "tt.func" or "public" not in {t.text for t in operation.tokens}:
            continue
        multiples = _multiples(operation)
        for value in operation.regions[0].entry.arguments:
            at = value.index
            if value.type in ("i32", "i64"):
                short[at], large[at] = 16 * (21 + at), 16 * (257 + 6 * at)
                counts[at] = short[at] if value.name in multiples else 4 + at % 4
            elif (value.type or "").startswith("!tt.ptr"):
                short[at] = counts[at] = large[at] = (at + 1) << 40
    return [
        Launch(short, (2, 3, 1), (4, 7, 5)),
        Launch(counts, (2, 3, 1), (4, 7, 5)),
        Launch(large, (37, 3, 2), (61, 7, 5)),
    ]


def _multiples(function: Operation) -> set[str]:
    """The arguments of which the function says that they are multiples of something."""
    found, name = set(), ""
    for before, token in itertools.pairwise(function.tokens):
        if before.kind == "value" and token.text == ":":
            name = before.text
        elif token.text == "tt.divisibility":
            found.add(name)
    return found


__all__ = ["launches"]
