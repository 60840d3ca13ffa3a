"""How an operator of torch is defined: the one place that knows on which devices there are kernels.

All are in the namespace ``torch.ops.triton_ext``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from triton_ext.ops import checks, flops
from triton_ext.ops.call import Call

library = torch.library.Library("triton_ext", "DEF")


def defined(schema: str, made: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """The operator of a schema, for the GPU, the emulated one, and tensors without memory.

    Args:
        made: makes its result.
        fake: makes that of tensors without memory.
    """
    name = schema.partition("(")[0]
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CUDA", "CPU"):  # on the host: emulated
        library.impl(name, made, key)
    operator = getattr(torch.ops.triton_ext, name).default
    torch.library.register_fake(operator, fake, lib=library)
    return operator


def defined_product(
    schema: str, asked: Callable[..., Call], product: Callable[[Call], Tensor], dims: int | None
) -> torch._ops.OpOverload[..., Tensor]:
    """The operator of products, all of which follows from what its arguments ask for.

    Args:
        asked: the call of such arguments.
        product: makes a call.
        dims: how many dimensions a and b have; None of products of groups.
    """

    def checked(*arguments: Any, **others: Any) -> Call:
        call = asked(*arguments, **others)
        if dims is None:
            checks.check_groups(call)
        else:
            checks.check_operands(call.a, call.b, dims)
        return call

    def made(*arguments: Any) -> Tensor:
        return product(checked(*arguments))

    def fake(*arguments: Any, **others: Any) -> Tensor:
        call = checked(*arguments, **others)
        return call.a.new_empty(call.shape, dtype=call.dtype)

    operator: torch._ops.OpOverload[..., Tensor] = defined(schema, made, fake)
    names = [each.name for each in operator._schema.arguments]
    of_groups = dims is None and flops.of_groups(names.index("rows"))
    flops.counted_by(operator._opname, of_groups or flops.of_product)
    return operator
