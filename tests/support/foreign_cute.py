"""Kernels of QuACK and FlashAttention-4 at small sizes, each beside its definition in float64.

NVIDIA's CuTe DSL compiles them, host code and all, to functions that tvm-ffi calls.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

F = torch.nn.functional
Pairs = Iterator[tuple[torch.Tensor, torch.Tensor, float]]
NEEDS = ("nvidia-cutlass-dsl==4.8.1", "apache-tvm-ffi==0.1.15.post2", "einops==0.8.2")
"""What they need, but for torch and its extension of tvm-ffi."""
BARE = ("flash-attn-4>=4.0.0b36", "quack-kernels==0.6.5")
"""What FlashAttention-4 is, which has no release yet, and what else it needs."""
DSL = (("PYTHONPATH", "{folder}:{folder}/nvidia_cutlass_dsl/dsl_packages"),)
"""The DSL names its modules in a file that pip's ``--target`` does not read."""
ROUNDED = 4e-3
"""How far a result in bf16 may be off, as the norm of the difference by that of the result."""


@dataclass(frozen=True)
class Change:
    """Lines of a file, and those in their place."""

    file: str
    old: str
    new: str

    def __str__(self) -> str:
        new, old = (" ".join(each.split()) for each in (self.new, self.old))
        return f"`{new}` for `{old}` in `{self.file}`"


_RELEASED = """\
                    handle_Q.release()
                    pipeline_dS.consumer_release(consumer_state_dS)
"""
_AWAITED = """\
                    pipeline_dS.sync_object_empty.wait(
                        consumer_state_dS.index, consumer_state_dS.phase
                    )
"""
MENDED = {
    "backward_64": Change("flash_attn/cute/flash_bwd_sm100.py", _RELEASED, f"{_RELEASED}{_AWAITED}")
}
"""FlashAttention-4 4.0.0b36: nobody waits for the last commit that releases dS, and the block may
have ended when it arrives."""


def _numbers(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def _with_gradients(
    function: Callable[..., Any], definition: Callable[..., Any], most: float, *inputs: torch.Tensor
) -> Pairs:
    """The result and all gradients of a function, and of what defines it."""
    leaves = [each.clone().requires_grad_() for each in inputs]
    exact = [each.double().requires_grad_() for each in inputs]
    found, expected = function(*leaves), definition(*exact)
    gradient = torch.randn_like(expected).to(found.dtype)
    gradients = torch.autograd.grad(found, leaves, gradient)
    wanted = torch.autograd.grad(expected, exact, gradient.double())
    yield found, expected, most
    yield from ((a, b, most) for a, b in zip(gradients, wanted, strict=True))


class Quack:
    def rmsnorm() -> Pairs:
        ops = importlib.import_module("quack.rmsnorm")

        def defined(x: Any, w: Any) -> Any:
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w

        inputs = _numbers(6, 1024), _numbers(1024, dtype=torch.float32)
        yield from _with_gradients(
            lambda x, w: ops.rmsnorm(x, w, eps=1e-6), defined, ROUNDED, *inputs
        )

    def softmax() -> Pairs:
        ops, x = importlib.import_module("quack.softmax"), _numbers(6, 1024, dtype=torch.float32)
        yield from _with_gradients(ops.softmax, lambda x: x.softmax(-1), 1e-5, x)

    def cross_entropy() -> Pairs:
        ops = importlib.import_module("quack.cross_entropy")
        x, target = _numbers(6, 1024), torch.randint(0, 1024, (6,), device="cuda")
        yield from _with_gradients(
            lambda x: ops.cross_entropy(x, target, reduction="none"),
            lambda x: F.cross_entropy(x, target, reduction="none"), ROUNDED, x,
        )  # fmt: skip

    def topk() -> Pairs:
        ops, x = importlib.import_module("quack.topk"), _numbers(6, 1024, dtype=torch.float32)
        yield ops.topk(x, 8)[0], x.topk(8)[0], 1e-4  # the numbers' last bits are their places

    def gemm() -> Pairs:
        ops = importlib.import_module("quack.gemm_interface")
        a, b = _numbers(256, 128), _numbers(128, 256)
        yield ops.gemm(a, b, tuned=False), a.double() @ b.double(), ROUNDED

    def gemm_add() -> Pairs:
        ops = importlib.import_module("quack.gemm_interface")
        a, b, c = _numbers(256, 128), _numbers(128, 256), _numbers(256, 256)
        yield ops.gemm_add(a, b, c, tuned=False), a.double() @ b.double() + c.double(), ROUNDED

    def gemm_gelu() -> Pairs:
        ops = importlib.import_module("quack.gemm_interface")
        a, b = _numbers(256, 128), _numbers(128, 256)
        before, after = ops.gemm_act(a, b, activation="gelu_tanh_approx", tuned=False)
        exact = a.double() @ b.double()
        yield before, exact, ROUNDED
        yield after, F.gelu(exact, approximate="tanh"), ROUNDED


def _attention(
    width: int, *, causal: bool = False, heads: int = 2, gradients: bool = False, tokens: int = 256
) -> Pairs:
    ops = importlib.import_module("flash_attn.cute")

    def flash(q: Any, k: Any, v: Any) -> Any:
        found = ops.flash_attn_func(q, k, v, causal=causal)
        return found[0] if isinstance(found, tuple) else found

    def defined(q: Any, k: Any, v: Any) -> Any:
        k, v = (each.repeat_interleave(q.shape[2] // each.shape[2], 2) for each in (k, v))
        rows = (each.transpose(1, 2) for each in (q, k, v))
        return F.scaled_dot_product_attention(*rows, is_causal=causal).transpose(1, 2)

    q, k, v = (_numbers(1, tokens, number, width) for number in (2, heads, heads))
    if gradients:
        yield from _with_gradients(flash, defined, ROUNDED, q, k, v)
    else:
        yield flash(q, k, v), defined(*(each.double() for each in (q, k, v))), ROUNDED


class FlashAttention:
    def forward_64() -> Pairs:
        yield from _attention(64)

    def forward_64_causal() -> Pairs:
        yield from _attention(64, causal=True)

    def forward_128() -> Pairs:
        yield from _attention(128)

    def forward_128_causal() -> Pairs:
        yield from _attention(128, causal=True)

    def forward_grouped() -> Pairs:
        yield from _attention(128, causal=True, heads=1, tokens=200)

    def backward_64() -> Pairs:
        yield from _attention(64, gradients=True)

    def backward_128_causal() -> Pairs:
        yield from _attention(128, causal=True, gradients=True)
