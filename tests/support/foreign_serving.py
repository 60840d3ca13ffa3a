"""Kernels that models are served and trained with, each beside its definition in torch: attention
over pages, grouped and quantised products, mixtures of experts, state-space models.

The cases are as those of `foreign_cases`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from foreign_cute import Change

F = torch.nn.functional
Pairs = Iterator[tuple[torch.Tensor, torch.Tensor, float]]
ROUNDED = 4e-3
"""How far a result in bf16 may be off, as the norm of the difference by that of the result."""


def _numbers(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def _attention(q: Any, k: Any, v: Any, *, causal: bool = True) -> torch.Tensor:
    """Attention over (batch, heads, tokens, width) in float64; the last tokens of k are q's."""
    q, k, v = (each.double() for each in (q, k, v))
    k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], 1) for each in (k, v))
    allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    if causal:
        allowed = allowed.tril(k.shape[2] - q.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)


def _quantized(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes in e4m3 and a scale for each row."""
    scales = x.float().abs().amax(-1) / 448
    return (x.float() / scales[..., None]).to(torch.float8_e4m3fn), scales


class Sglang:
    def gluon_decode_attention() -> Pairs:
        ops = importlib.import_module("sglang.kernels.ops.attention.dsv4.decode_attention_sm100")
        pages, page, chosen = 2, 64, 96
        values = _numbers(pages * page, 448, dtype=torch.float32).to(torch.float8_e4m3fn)
        rope = _numbers(pages * page, 64)
        exponents = torch.randint(122, 128, (pages * page, 8), dtype=torch.uint8)
        exponents[:, 7] = 0
        data = torch.cat([values.view(torch.uint8), rope.view(torch.uint8)], 1)
        each_page = (data.view(pages, -1), exponents.view(pages, -1))
        cache = torch.cat(each_page, 1).view(pages, page, 1, 584)
        scales = torch.exp2(exponents[:, :7].double() - 127).repeat_interleave(64, 1)
        rows = torch.cat([values.double() * scales, rope.double()], 1)
        q = _numbers(2, 16, 512)
        indices = torch.stack([torch.randperm(pages * page)[:chosen] for _ in range(2)]).int()
        lengths, sink = torch.tensor([chosen, 40]).int(), _numbers(16, dtype=torch.float32)
        found = ops.swapab_attention(q, cache, indices, lengths, sink)
        for at, (places, length) in enumerate(zip(indices, lengths, strict=True)):
            keys = rows[places[:length]]
            scores = torch.cat([q[at].double() @ keys.T * 512**-0.5, sink[:, None].double()], 1)
            yield found[at], scores.softmax(-1)[:, :-1] @ keys, ROUNDED

    def fused_moe() -> Pairs:
        yield from _sglang_moe()

    def fused_moe_tma() -> Pairs:
        yield from _sglang_moe(b_use_tma=True)

    def block_fp8_matmul() -> Pairs:
        ops = importlib.import_module("sglang.kernels.ops.gemm.fp8_kernel")
        a, b = (_numbers(*shape).to(torch.float8_e4m3fn) for shape in ((48, 256), (128, 256)))
        sa, sb = torch.rand(48, 2), torch.rand(1, 2)
        found = ops.w8a8_block_fp8_matmul_triton(a, b, sa, sb, [128, 128], torch.bfloat16)
        scaled = (a.double() * sa.repeat_interleave(128, 1),
                  b.double() * sb.repeat_interleave(128, 0).repeat_interleave(128, 1))  # fmt: skip
        yield found, scaled[0] @ scaled[1].T, ROUNDED

    def extend_attention() -> Pairs:
        ops = importlib.import_module("sglang.kernels.ops.attention.extend_attention")
        prefix, new = (24, 0), (20, 37)
        q = _numbers(sum(new), 4, 64)
        k, v = _numbers(sum(new), 2, 64), _numbers(sum(new), 2, 64)
        old_k, old_v = _numbers(64, 2, 64), _numbers(64, 2, 64)
        places, out = torch.randperm(64)[: sum(prefix)], torch.empty_like(q)
        ops.extend_attention_fwd(
            q, k, v, out, old_k, old_v, torch.tensor([0, 20, 57]).int(),
            torch.tensor([0, 24, 24]).int(), places, None, True, None, 37, 1.0, 1.0,
        )  # fmt: skip
        for first, last, held in ((0, 20, places), (20, 57, places[:0])):
            keys, values = (
                torch.cat([before[held], after[first:last]]).transpose(0, 1)[None]
                for before, after in ((old_k, k), (old_v, v))
            )
            wanted = _attention(q[first:last].transpose(0, 1)[None], keys, values)
            yield out[first:last], wanted[0].transpose(0, 1), ROUNDED


def _routing(experts: torch.Tensor, number: int, block: int) -> tuple[torch.Tensor, ...]:
    """The rows of each expert, each expert's padded to whole blocks; the expert of each block."""
    flat, rows, of = experts.flatten(), [], []
    for expert in range(number):
        own = (flat == expert).nonzero().flatten().tolist()
        own += [flat.numel()] * (-len(own) % block)
        rows += own
        of += [expert] * (len(own) // block)
    return torch.tensor(rows).int(), torch.tensor(of).int(), torch.tensor([len(rows)]).int()


def _mixture(x: Any, w: Any, weights: Any, experts: Any) -> torch.Tensor:
    """Each row's products with its experts, by their weights."""
    rows = torch.einsum("md,mknd->mkn", x.double(), w.double()[experts.long()])
    return rows * weights.double()[..., None]


_TILES = {"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 8,
          "num_warps": 4, "num_stages": 3}  # fmt: skip


def _moe(number: int = 4) -> tuple[torch.Tensor, ...]:
    x, w = _numbers(40, 128), _numbers(number, 128, 128)
    weights, experts = torch.rand(40, number).softmax(-1).topk(2)
    return x, w, weights, experts.int(), *_routing(experts, number, _TILES["BLOCK_SIZE_M"])


def _sglang_moe(**options: bool) -> Pairs:
    import triton.language as tl

    ops = importlib.import_module("sglang.kernels.ops.moe.fused_moe_triton_kernels")
    x, w, weights, experts, rows, of, padded = _moe()
    found = torch.empty(40, 2, 128, dtype=x.dtype)
    ops.invoke_fused_moe_kernel(
        x, w, None, found, None, None, None, weights, experts, rows, of, padded, True, 2, _TILES,
        tl.bfloat16, False, False, False, False, False, **options,
    )  # fmt: skip
    yield found, _mixture(x, w, weights, experts), ROUNDED


class Vllm:
    def unified_attention() -> Pairs:
        yield from _unified()

    def unified_attention_td() -> Pairs:
        yield from _unified(use_td=True)

    def unified_attention_window() -> Pairs:
        yield from _unified(window=15)

    def fused_moe() -> Pairs:
        yield from _vllm_moe()

    def scaled_mm() -> Pairs:
        ops = importlib.import_module(
            "vllm.model_executor.layers.quantization.compressed_tensors.triton_scaled_mm"
        )
        (a, sa), (b, sb) = _quantized(_numbers(48, 256)), _quantized(_numbers(128, 256))
        found = ops.triton_scaled_mm(a, b.T, sa, sb, torch.bfloat16)
        yield found, (a.double() * sa[:, None]) @ (b.double() * sb[:, None]).T, ROUNDED

    def batch_invariant_matmul() -> Pairs:
        ops = importlib.import_module("vllm.model_executor.determinism.batch_invariant")
        a, b, bias = _numbers(160, 96), _numbers(96, 136), _numbers(136)
        yield ops.matmul_persistent(a, b, bias=bias), a.double() @ b.double() + bias, ROUNDED

    def matmul_ogs() -> Pairs:
        yield from _matmul_ogs()

    def lora() -> Pairs:
        shrink, expand = (
            getattr(
                importlib.import_module(f"vllm.lora.ops.triton_ops.lora_{name}_op"), f"_lora_{name}"
            )
            for name in ("shrink", "expand")
        )
        x, a, b = _numbers(24, 128), _numbers(2, 16, 128), _numbers(2, 96, 16)
        which = torch.randint(0, 2, (24,)).int()
        order = torch.argsort(which, stable=True).int()
        counts = torch.bincount(which, minlength=2)
        starts = torch.tensor([0, int(counts[0]), 24, 24]).int()
        per = torch.tensor([int(counts[0]), int(counts[1]), 0]).int()
        ids = torch.tensor([0, 1, -1]).int()
        flag = torch.tensor([False])
        middle = torch.zeros(1, 24, 16)
        active = torch.tensor([2], dtype=torch.int32)
        shrink(x, [a[:, None]], middle, which, order, per, starts, ids, flag, active, 0.5)
        exact = torch.einsum("md,mrd->mr", x.double(), a.double()[which.long()]) * 0.5
        yield middle[0], exact, ROUNDED
        out = _numbers(24, 96)
        before = out.double()
        expand(middle, [b[:, None]], out, which, order, per, starts, ids, flag, active, 0, True)
        yield out, before + torch.einsum("mr,mnr->mn", exact, b.double()[which.long()]), 6e-3


def _unified(*, window: int = 0, **options: bool) -> Pairs:
    ops = importlib.import_module("vllm.v1.attention.ops.triton_unified_attention")
    page, lengths, new = 16, (40, 21), (9, 1)
    q, k, v = _numbers(sum(new), 8, 64), _numbers(8, page, 2, 64), _numbers(8, page, 2, 64)
    pages, out = torch.tensor([[5, 2, 7], [1, 4, 0]]).int(), torch.empty_like(q)
    starts, used = torch.tensor([0, 9, 10]).int(), torch.tensor(lengths).int()
    ops.unified_attention(
        q, k, v, out, starts, max(new), used, max(lengths), 0.125, True,
        (window - 1, 0) if window else (-1, -1), pages, 0.0, None, None, None, **options,
    )  # fmt: skip
    for at, (length, number) in enumerate(zip(lengths, new, strict=True)):
        keys, values = (
            each[pages[at].long()].flatten(0, 1)[:length].transpose(0, 1)[None] for each in (k, v)
        )
        rows = slice(int(starts[at]), int(starts[at]) + number)
        queries = q[rows].transpose(0, 1)[None]
        if window:
            allowed = torch.ones(number, length, dtype=torch.bool).tril(length - number)
            allowed &= torch.ones(number, length, dtype=torch.bool).triu(
                length - number - window + 1
            )
            whole = (each.double().repeat_interleave(4, 1) for each in (keys, values))
            wanted = F.scaled_dot_product_attention(queries.double(), *whole, attn_mask=allowed)
        else:
            wanted = _attention(queries, keys, values)
        yield out[rows], wanted[0].transpose(0, 1), ROUNDED


def _vllm_moe() -> Pairs:
    import triton.language as tl

    ops = importlib.import_module("vllm.model_executor.layers.fused_moe.fused_moe")
    x, w, weights, experts, rows, of, padded = _moe()
    found = torch.empty(40, 2, 128, dtype=x.dtype)
    ops.invoke_fused_moe_triton_kernel(
        x, w, found, None, None, weights, rows, of, padded, True, 2, _TILES, tl.bfloat16, False,
        False, False, False, False,
    )  # fmt: skip
    yield found, _mixture(x, w, weights, experts), ROUNDED


def _matmul_ogs() -> Pairs:
    """OpenAI's kernel for mixtures of experts: routing, gather, products, scatter."""
    routing = importlib.import_module("triton_kernels.routing")
    ops = importlib.import_module("triton_kernels.matmul_ogs")
    x, w, bias = _numbers(40, 128), _numbers(4, 128, 128), _numbers(4, 128, dtype=torch.float32)
    logits = _numbers(40, 4)
    data, gather, scatter = routing.routing(logits, 2)
    found = ops.matmul_ogs(
        x, w, bias, data, gather_indx=gather, scatter_indx=scatter, gammas=data.gate_scal
    )
    weights, experts = logits.double().topk(2)
    each = _mixture(x, w.transpose(1, 2), torch.ones(40, 2), experts) + bias.double()[experts]
    yield found, (each * weights.softmax(-1)[..., None]).sum(1), ROUNDED


class FlashLinear:
    def gated_delta_rule() -> Pairs:
        ops = importlib.import_module("fla.ops.gated_delta_rule")
        yield from _delta(ops.chunk_gated_delta_rule, g=-torch.rand(1, 96, 2) * 0.3)

    def kimi_delta_attention() -> Pairs:
        ops = importlib.import_module("fla.ops.kda")
        yield from _delta(ops.chunk_kda, g=-torch.rand(1, 96, 2, 64) * 0.3, gradients=False)

    def sinkhorn() -> Pairs:
        ops = importlib.import_module("fla.ops.utils.sinkhorn")
        x = _numbers(3, 6, 6, dtype=torch.float32)
        leaf, exact = x.clone().requires_grad_(), x.double().requires_grad_()
        found, wanted = ops.sinkhorn(leaf, 5), exact.log_softmax(-2).log_softmax(-1)
        for _ in range(4):
            wanted = wanted.log_softmax(-2).log_softmax(-1)
        yield found, wanted.exp(), 1e-5
        gradient = torch.randn(3, 6, 6)
        yield (torch.autograd.grad(found, leaf, gradient)[0],
               torch.autograd.grad(wanted.exp(), exact, gradient.double())[0], 1e-4)  # fmt: skip

    def causal_convolution() -> Pairs:
        ops = importlib.import_module("fla.modules.causal_conv1d")
        x, w = _numbers(1, 70, 64).requires_grad_(), _numbers(64, 4).requires_grad_()
        found = ops.causal_conv1d(x, w, activation="silu")
        found = found[0] if isinstance(found, tuple) else found
        a, b = (each.detach().double().requires_grad_() for each in (x, w))
        wanted = F.silu(
            F.conv1d(F.pad(a.transpose(1, 2), (3, 0)), b[:, None], groups=64)
        ).transpose(1, 2)
        yield found, wanted, ROUNDED
        gradient = _numbers(1, 70, 64)
        gradients = torch.autograd.grad(found, (x, w), gradient)
        for one, other in zip(
            gradients, torch.autograd.grad(wanted, (a, b), gradient.double()), strict=True
        ):
            yield one, other, 6e-3

    def sparse_attention() -> Pairs:
        ops = importlib.import_module("fla.ops.nsa")
        q, k, v = (_numbers(1, 96, heads, 64) for heads in (16, 1, 1))
        ones = torch.ones(1, 96, 16)
        blocks = torch.stack([torch.arange(96) // 32, torch.zeros(96, dtype=torch.int64)], -1)
        found = ops.parallel_nsa(q, k, v, None, ones, None, blocks.view(1, 96, 1, 2), 2, 32)
        at = torch.arange(96)
        own = (at[None] // 32 == at[:, None] // 32) | (at[None] < 32)
        own &= at[None] <= at[:, None]
        rows = (
            each.double().transpose(1, 2)
            for each in (q, k.repeat(1, 1, 16, 1), v.repeat(1, 1, 16, 1))
        )
        wanted = F.scaled_dot_product_attention(*rows, attn_mask=own).transpose(1, 2)
        found = found[0] if isinstance(found, tuple) else found
        yield found, wanted, 6e-3


def _delta(function: Callable[..., Any], g: torch.Tensor, *, gradients: bool = True) -> Pairs:
    """The delta rule with decays, and its gradients, beside the recurrence."""
    q, k, v = (F.normalize(_numbers(1, 96, 2, 64).float(), dim=-1).bfloat16() for _ in range(3))
    inputs = [each.requires_grad_() for each in (q, k, v, g, torch.rand(1, 96, 2))]
    q, k, v, g, beta = inputs
    found, _ = function(q=q, k=k, v=v, g=g, beta=beta, scale=0.125)
    exact = [each.detach().double().requires_grad_() for each in inputs]
    wanted = _delta_rule(*exact)
    yield found, wanted, 1e-2
    if gradients:
        gradient = torch.randn_like(wanted)
        made = torch.autograd.grad(found, inputs, gradient.to(found.dtype))
        for one, other in zip(made, torch.autograd.grad(wanted, exact, gradient), strict=True):
            yield one, other, 2e-2


def _delta_rule(q: Any, k: Any, v: Any, g: Any, beta: Any) -> torch.Tensor:
    state, rows = torch.zeros(*q.shape[:1], *q.shape[2:], v.shape[-1]).double(), []
    decay = g.exp() if g.ndim == 4 else g.exp()[..., None]
    for at in range(q.shape[1]):
        state = state * decay[:, at, :, :, None]
        change = v[:, at] - (state * k[:, at, :, :, None]).sum(2)
        state = state + (k[:, at] * beta[:, at, :, None])[..., None] * change[:, :, None]
        rows.append((state * q[:, at, :, :, None] * 0.125).sum(2))
    return torch.stack(rows, 1)


class Fbgemm:
    def grouped_gemm() -> Pairs:
        ops = importlib.import_module("fbgemm_gpu.experimental.gemm.triton_gemm.grouped_gemm")
        sizes = torch.tensor([40, 0, 88]).int()
        x, w = _numbers(128, 128), _numbers(3 * 64, 128)
        found = ops.grouped_gemm(x, w, sizes, _use_warp_specialization=False)
        yield found, _grouped(x, w.view(3, 64, 128), sizes), ROUNDED

    def grouped_gemm_fp8() -> Pairs:
        ops = importlib.import_module("fbgemm_gpu.experimental.gemm.triton_gemm.grouped_gemm")
        sizes = torch.tensor([40, 0, 88]).int()
        (x, sx), (w, sw) = _quantized(_numbers(128, 256)), _quantized(_numbers(3 * 64, 256))
        found = ops.grouped_gemm_fp8_rowwise(x, w, sizes, sx, sw, _use_warp_specialization=False)
        exact = _grouped(
            x.double() * sx[:, None], (w.double() * sw[:, None]).view(3, 64, -1), sizes
        )
        yield found, exact, ROUNDED

    def quantize_fp8_row() -> Pairs:
        ops = importlib.import_module("fbgemm_gpu.experimental.gemm.triton_gemm.fp8_gemm")
        x = _numbers(20, 200)
        codes, scales = ops.triton_quantize_fp8_row(x)
        yield codes.float() * scales[:, None], x, 0.04


def _grouped(x: torch.Tensor, w: torch.Tensor, sizes: Any) -> torch.Tensor:
    rows = x.double().split([int(each) for each in sizes])
    return torch.cat([a @ b.double().T for a, b in zip(rows, w, strict=True)])


class FlashInfer:
    def gemm_persistent() -> Pairs:
        ops = importlib.import_module("flashinfer.triton.sm_constraint_gemm")
        a, b, c = _numbers(192, 128), _numbers(128, 160), _numbers(192, 160)
        wanted = a.double() @ b.double() + 2 * c.double()
        yield ops.gemm_persistent(a, b, c, beta=2.0, num_sms=4), wanted, ROUNDED

    def gemm_descriptor_persistent() -> Pairs:
        ops = importlib.import_module("flashinfer.triton.sm_constraint_gemm")
        a, b, c = _numbers(192, 128), _numbers(160, 128), _numbers(192, 160)
        wanted = a.double() @ b.double().T + 2 * c.double()
        yield ops.gemm_descriptor_persistent(a, b, c, beta=2.0, num_sms=4), wanted, ROUNDED


_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class UnslothZoo:
    def mxfp4_grouped_mm() -> Pairs:
        ops = importlib.import_module("unsloth_zoo.mxfp4_gemm")
        codes = torch.randint(0, 256, (2, 64, 4, 16), dtype=torch.uint8)
        scales = torch.randint(120, 130, (2, 64, 4), dtype=torch.uint8)
        values = torch.tensor([*_E2M1, *(-each for each in _E2M1)], dtype=torch.float64)
        pairs = torch.stack([values[(codes & 15).long()], values[(codes >> 4).long()]], -1)
        w = (pairs.flatten(-2) * torch.exp2(scales.double() - 127)[..., None]).flatten(-2)
        counts = torch.tensor([20, 28]).int()
        for x, weights in ((_numbers(48, 128), w), (_numbers(48, 64), w.transpose(1, 2))):
            found = ops.mxfp4_grouped_mm(x, codes, scales, counts, transpose_b=weights is w)
            yield found, _grouped(x, weights, counts), ROUNDED


class Liger:
    def swiglu_mlp() -> Pairs:
        ops = importlib.import_module("liger_kernel.ops.mlp")
        shapes = (1, 160, 128), (256, 128), (256, 128), (128, 256)
        inputs = [(_numbers(*shape) * 0.2).requires_grad_() for shape in shapes]
        x, gate, up, down = (each.detach().double().requires_grad_() for each in inputs)
        found = ops.LigerMLPFunction.apply(*inputs)
        wanted = (F.silu(x @ gate.T) * (x @ up.T)) @ down.T
        yield found, wanted, 6e-3
        gradient = torch.randn_like(wanted)
        made = torch.autograd.grad(found, inputs, gradient.to(found.dtype))
        exact = torch.autograd.grad(wanted, (x, gate, up, down), gradient)
        yield from ((a, b, 1.5e-2) for a, b in zip(made, exact, strict=True))


class SageAttention:
    def attention() -> Pairs:
        yield from _sage(64, 256, causal=False)

    def attention_160() -> Pairs:
        yield from _sage(64, 160, causal=False)

    def attention_160_causal() -> Pairs:
        yield from _sage(128, 160, causal=True)


def _sage(width: int, tokens: int, *, causal: bool) -> Pairs:
    sage = importlib.import_module("sageattention")
    q, k, v = (_numbers(1, 2, tokens, width, dtype=torch.float16) for _ in range(3))
    found = sage.sageattn(q.clone(), k.clone(), v.clone(), is_causal=causal)
    yield found, _attention(q, k, v, causal=causal), 0.03


class CutCrossEntropy:
    def linear_cross_entropy() -> Pairs:
        cce = importlib.import_module("cut_cross_entropy")
        e, c = _numbers(160, 64).requires_grad_(), _numbers(300, 64).requires_grad_()
        targets = torch.randint(0, 300, (160,))
        found = cce.linear_cross_entropy(e, c, targets, filter_eps=None)
        exact = [each.detach().double().requires_grad_() for each in (e, c)]
        wanted = F.cross_entropy(exact[0] @ exact[1].T, targets)
        yield found, wanted, ROUNDED
        found.backward()
        wanted.backward()
        for a, b in zip((e, c), exact, strict=True):
            yield a.grad, b.grad, 2e-2


_PRODUCT = "        qk = tl.dot(q, k).to(tl.float32) * q_scale * k_scale \n"
_RANGE = "        lo, hi = start_m * BLOCK_M, {}\n"
_END = "(start_m + 1) * BLOCK_M"
SAGE = {
    "attention_160": Change(
        "sageattention/attn_qk_int8_per_block.py", _PRODUCT,
        f"{_PRODUCT}        qk = tl.where(k_mask, qk, -1.0e6)\n",
    ),
    "attention_160_causal": Change(
        "sageattention/attn_qk_int8_per_block_causal.py", _RANGE.format(_END),
        _RANGE.format(f"min({_END}, kv_len)"),
    ),
}  # fmt: skip
"""SageAttention 1.0.6, where 64 divides not the number of keys: those past the last one, which are
zeros, take part; and the scale of a block that is not there is read."""
