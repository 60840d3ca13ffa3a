"""The one way to a kernel: a call is checked, described, planned and launched; one that repeats
another is launched at once.
"""

from __future__ import annotations

import math

from torch import Tensor

from triton_ext.ops.by_threads import ThreadsLaunch
from triton_ext.ops.call import Call
from triton_ext.ops.checks import checked_gpu
from triton_ext.ops.device import Gpu
from triton_ext.ops.epilogue import finished
from triton_ext.ops.operands import is_writable
from triton_ext.ops.planning import described, planned
from triton_ext.ops.plans import (
    MAX_PLANS,
    ProductPlan,
    Signature,
    depending,
    find,
    signature,
    store,
)
from triton_ext.ops.rule import rule
from triton_ext.ops.shapes import one_matrix, transposed
from triton_ext.ops.tuning import measure_once

_copied: dict[tuple[int, Signature], None] = {}
"""The calls whose out TMA cannot write, and threads would write more slowly than a copy does."""
depending.append(_copied)


def product(call: Call) -> Tensor:
    """The product of (..., M, K) and (K, N), or of (batch, M, K) and (batch, K, N), with what its
    epilogue asks for.

    The kernel does it all before it rounds the output; after a kernel without consumers, which only
    a configuration asks for, come torch's own operations. A batch is one launch. With alpha 0, a
    and b are not read.

    Args:
        call: with a bias (N,) and a residual of the output's type, without one if beta is 0. A
            residual that does not have the output's shape, or whose rows TMA cannot read, is
            copied. Its out may share memory with the operands and be the residual.

    Raises:
        UnsupportedDeviceError, LayoutError: as for `triton_ext.matmul`.
    """
    made = offered_product(call)
    assert made is not None  # nothing is left
    return made


def offered_product(call: Call, *, leaves: bool = False) -> Tensor | None:
    """`product`; but if it `leaves` some, None where torch's own was measured to be faster. (With a
    residual, torch would need a further pass.)
    """
    plan = find(call)
    if plan is None:
        call = call.upright
        gpu = checked_gpu(call)
        if call.groups is not None and not (call.a.numel() and call.b.numel() and call.shape[0]):
            return call.a.new_zeros(call.shape, dtype=call.dtype)
        if not (math.prod(call.shape) and call.b.shape[-2] and call.epilogue.alpha):
            made = finished(call.a.new_zeros(call.sums_shape, dtype=call.dtype), call.epilogue)
            return made if call.out is None else call.out.copy_(made)
        matrix = one_matrix(call) if call.groups is None else None
        if matrix is not None:
            made_once = offered_product(matrix, leaves=leaves)
            return None if made_once is None else _as_batch(made_once, matrix, call)
        lies = call.out is None or is_writable(call.out)
        turned = None if lies else transposed(call)
        if turned is not None and turned.out is not None and is_writable(turned.out):
            return None if offered_product(turned, leaves=leaves) is None else call.out
        plan = _plan(gpu, call)
    if call.out is not None and (plan is None or plan.overlaps(call)):
        return call.out.copy_(product(call._replace(out=None)))
    assert plan is not None  # there always is one to new memory
    if leaves and plan.torch_is_faster and call.epilogue.residual is None:
        return None
    return plan.run(call)


def _plan(gpu: Gpu, call: Call) -> ProductPlan | None:
    """The plan of a call whose tensors fit, which is kept; None if no kernel writes its out, or if
    new memory that is copied is predicted to be faster.
    """
    out = call.out
    if out is not None and call.a.dim() != call.b.dim():
        return None
    by_threads = out is not None and not is_writable(out)
    if by_threads and (gpu.arch, signature(call)) in _copied:
        return None
    plan = find(call, gpu)
    if plan is not None:
        return plan
    found = described(gpu, call)
    if by_threads and found.threads is None:
        return None
    if call.config is None and found.is_measurable and rule() == "measured" and not by_threads:
        measure_once(found, call)
    plan = planned(found, call.config)
    if by_threads and not isinstance(plan.launch, ThreadsLaunch):
        if len(_copied) >= MAX_PLANS:
            _copied.clear()
        _copied[gpu.arch, signature(call)] = None
        return None
    return store(call, plan)


def _as_batch(made: Tensor, matrix: Call, call: Call) -> Tensor:
    """The output of a call, made of the product of `one_matrix`."""
    if call.out is not None and matrix.out is not None:
        return call.out
    whole = made.numel() == math.prod(call.shape)
    made = made.view(call.shape) if whole else made.expand(call.shape).contiguous()
    return made if call.out is None else call.out.copy_(made)
