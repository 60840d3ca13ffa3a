"""The kernels of liger-kernel and fla-core, beside their definitions: tests to be mixed in."""

from __future__ import annotations

import gc

import pytest
import torch
from triton.runtime.autotuner import Autotuner

import triton_ext

F = torch.nn.functional


def first_configurations():
    """Keep one configuration of every autotuned kernel: trying them all would only take time."""
    for tuner in gc.get_objects():
        if type(tuner) is Autotuner:
            tuner.configs = tuner.configs[:1]


def error(found, expected):
    found, expected = found.detach().double(), expected.detach().double()
    assert found.shape == expected.shape
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


def forward_and_backward(arch, function, definition, *inputs):
    """The output and all gradients; the definition first, as some kernels overwrite their input."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    expected = definition(*leaves)
    gradient = torch.randn_like(expected)
    wanted = [expected, *torch.autograd.grad(expected, leaves, gradient.clone())]
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    with triton_ext.emulate(arch, cuda_on_host=True) as gpu:
        found = function(*leaves)
        kept = found.detach().clone()
        gradients = torch.autograd.grad(found, leaves, gradient.clone())
    assert gpu.launches >= 2
    return max(error(a, b) for a, b in zip([kept, *gradients], wanted, strict=True))


class LigerKernels:
    """The package liger-kernel."""

    def test_rms_norm(self, arch):
        ops = pytest.importorskip("liger_kernel.ops.rms_norm")
        x, w = torch.randn(8, 16, 64), torch.randn(64)

        def definition(x, w):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w

        found = forward_and_backward(
            arch, lambda x, w: ops.LigerRMSNormFunction.apply(x, w, 1e-6), definition, x, w
        )
        assert found < 1e-6

    def test_layer_norm(self, arch):
        ops = pytest.importorskip("liger_kernel.ops.layer_norm")
        found = forward_and_backward(
            arch,
            lambda x, w, b: ops.LigerLayerNormFunction.apply(x, w, b, 1e-6),
            lambda x, w, b: F.layer_norm(x, (64,), w, b, 1e-6),
            torch.randn(16, 64), torch.randn(64), torch.randn(64),
        )  # fmt: skip
        assert found < 1e-6

    def test_swiglu(self, arch):
        ops = pytest.importorskip("liger_kernel.ops.swiglu")
        found = forward_and_backward(
            arch, ops.LigerSiLUMulFunction.apply, lambda a, b: F.silu(a) * b,
            torch.randn(16, 128), torch.randn(16, 128),
        )  # fmt: skip
        assert found < 1e-6

    def test_geglu(self, arch):
        ops = pytest.importorskip("liger_kernel.ops.geglu")
        found = forward_and_backward(
            arch, ops.LigerGELUMulFunction.apply,
            lambda a, b: F.gelu(a, approximate="tanh") * b,
            torch.randn(16, 128), torch.randn(16, 128),
        )  # fmt: skip
        assert found < 1e-5

    def test_cross_entropy(self, arch):
        ops = pytest.importorskip("liger_kernel.ops.cross_entropy")
        x, target = torch.randn(16, 100, requires_grad=True), torch.randint(0, 100, (16,))
        expected = F.cross_entropy(x, target)
        (wanted,) = torch.autograd.grad(expected, x)
        with triton_ext.emulate(arch, cuda_on_host=True):
            found = ops.LigerCrossEntropyFunction.apply(
                x.clone(), target, None, -100, 0.0, 0.0, "mean", None, False
            )
            found = found[0] if isinstance(found, tuple) else found
            (gradient,) = torch.autograd.grad(found, x)
        assert error(found, expected) < 1e-6
        assert error(gradient, wanted) < 1e-6

    def test_softmax(self, arch):
        ops = pytest.importorskip("liger_kernel.ops.softmax")
        found = forward_and_backward(
            arch, ops.LigerSoftmaxFunction.apply, lambda x: x.softmax(-1), torch.randn(16, 100)
        )
        assert found < 1e-5

    def test_rope(self, arch):
        ops = pytest.importorskip("liger_kernel.ops.rope")
        q, k = torch.randn(2, 4, 16, 64), torch.randn(2, 2, 16, 64)
        angle = torch.arange(16)[:, None] / 10000 ** (torch.arange(0, 64, 2) / 64)
        cos, sin = (f(torch.cat([angle, angle], -1))[None] for f in (torch.cos, torch.sin))

        def rotated(x):
            turned = torch.cat([-x[..., 32:], x[..., :32]], -1)
            return x * cos[:, None] + turned * sin[:, None]

        wanted = rotated(q), rotated(k)
        with triton_ext.emulate(arch, cuda_on_host=True):
            found = ops.LigerRopeFunction.apply(q.clone(), k.clone(), cos, sin)
        assert max(error(a, b) for a, b in zip(found, wanted, strict=True)) < 1e-6

    def test_group_norm(self, arch):
        ops = pytest.importorskip("liger_kernel.ops.group_norm")
        x, w, b = torch.randn(2, 8, 32), torch.randn(8), torch.randn(8)
        with triton_ext.emulate(arch, cuda_on_host=True):
            found = ops.LigerGroupNormFunction.apply(x, w, b, 8, 2, 1e-5)
        assert error(found, F.group_norm(x, 2, w, b, 1e-5)) < 1e-6


class FlashLinearAttentionKernels:
    """The package fla-core (flash-linear-attention); its chunked kernels use tensor cores."""

    def heads(self, number, length=64, width=32):
        return [torch.randn(1, length, 2, width) for _ in range(number)]

    def test_attention(self, arch):
        ops = pytest.importorskip("fla.ops.attn.parallel")
        q, k, v = (x.half() for x in self.heads(3, 128, 64))
        swapped = [x.transpose(1, 2).float() for x in (q, k, v)]
        expected = F.scaled_dot_product_attention(*swapped, is_causal=True).transpose(1, 2)
        first_configurations()
        with triton_ext.emulate(arch, cuda_on_host=True):
            found = ops.parallel_attn(q, k, v)
        assert error(found, expected) < 1e-3

    def test_linear_attention(self, arch):
        ops = pytest.importorskip("fla.ops.linear_attn")
        q, k, v = self.heads(3)
        scores = torch.einsum("bthd,bshd->bhts", q * 32**-0.5, k).tril()
        expected = torch.einsum("bhts,bshd->bthd", scores, v)
        first_configurations()
        with triton_ext.emulate(arch, cuda_on_host=True):
            chunked, _ = ops.chunk_linear_attn(q, k, v, normalize=False)
            recurrent, _ = ops.fused_recurrent_linear_attn(q, k, v, normalize=False)
        assert error(chunked, expected) < 5e-3  # tf32
        assert error(recurrent, expected) < 1e-5

    def test_gated_linear_attention(self, arch):
        ops = pytest.importorskip("fla.ops.gla")
        naive = pytest.importorskip("fla.ops.gla.naive")
        q, k, v = self.heads(3)
        gates = F.logsigmoid(self.heads(1)[0])
        expected = naive.naive_recurrent_gla(*(x.clone() for x in (q, k, v, gates)))
        expected = expected[0] if isinstance(expected, tuple) else expected
        first_configurations()
        with triton_ext.emulate(arch, cuda_on_host=True):
            found, _ = ops.chunk_gla(q, k, v, gates)
        assert error(found, expected) < 5e-3

    def test_delta_rule(self, arch):
        ops = pytest.importorskip("fla.ops.delta_rule")
        q, k, v = self.heads(3)
        k, beta = F.normalize(k, dim=-1), torch.rand(1, 64, 2)
        first_configurations()
        with triton_ext.emulate(arch, cuda_on_host=True):
            chunked, _ = ops.chunk_delta_rule(*(x.bfloat16() for x in (q, k, v, beta)))
            recurrent, _ = ops.fused_recurrent_delta_rule(q, k, v, beta)
        assert error(chunked, recurrent) < 2e-2  # bf16
