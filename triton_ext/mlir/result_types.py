"""The types of an operation's results, of what its printed form says."""

from __future__ import annotations

import re

from triton_ext.mlir.tokens import split_arrow
from triton_ext.splitting import split_arguments

_TOKENS = re.compile(r"ttg\.async_(?:commit_group|wait|copy_\w+)|ttng\.tc_gen5_mma\w*")
_POINTER = re.compile(r"!tt\.ptr<([^<>,]+)(?:, \d+)?>")


def result_types(name: str, signature: str, count: int) -> list[str | None]:
    """The types of an operation's results, from those that it prints."""
    if name == "arith.constant" and not signature:
        return ["i1"] * count  # true, false
    if _TOKENS.fullmatch(name):
        return ["!ttg.async.token"] * count
    if not signature or not count:
        return [None] * count
    left, arrow, right = split_arrow(signature)
    if arrow:
        inside = right[1:-1] if right.startswith("(") and right.endswith(")") else right
        types = split_arguments(inside)
        return [*(types * count if len(types) == 1 else types), *[None] * count][:count]
    types = split_arguments(left)
    if len(types) == count > 1:
        return list(types)
    of_all = types[-1 if name == "arith.select" else 0]
    if name in ("arith.cmpi", "arith.cmpf"):
        shaped = re.fullmatch(r"tensor<((?:\d+x)*)[^,<>]+(,.*)?>", of_all)
        of_all = f"tensor<{shaped[1]}i1{shaped[2] or ''}>" if shaped else "i1"
    elif name == "tt.load":
        of_all = _POINTER.sub(r"\1", of_all)
    elif name == "tt.unsplat":
        of_all = re.sub(r"tensor<(?:\d+x)*([^,<>]+).*>", r"\1", of_all)
    return [of_all] * count
