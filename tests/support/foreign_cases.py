"""Kernels of other projects at small sizes, each beside its definition in torch.

A case is a function that runs kernels on the GPU that is emulated, and yields pairs of what they
gave and what is right, and how far these may be apart (the norm of the difference by that of what
is right). Their modules are imported when the case runs.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import foreign_cute
import foreign_serving as serving
import torch
import triton

F = torch.nn.functional
Pairs = Iterator[tuple[torch.Tensor, torch.Tensor, float]]


@dataclass(frozen=True)
class Project:
    """A project whose kernels are run.

    Attributes:
        package: its name in the registry.
        real: the modules that are imported as they are (`bare_packages`); none: the package itself.
        values: what the rest of it has at some names.
        needs: what it needs besides to be imported.
        bare: what is installed without what it depends on; none: the package.
        environment: variables, likewise; ``{folder}`` is where it is installed.
        gpus: those that it is for.
        only: the GPUs of kernels that are not for all of these.
        views_differ: kernels that reach the storage of a tensor beyond its view, and mean it.
        cases: name of a kernel -> what runs it.
        mended: name of a kernel -> what ends its own fault.
    """

    package: str
    real: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    gpus: tuple[str, ...] = ("sm_90", "sm_100", "sm_120")
    only: dict[str, tuple[str, ...]] = field(default_factory=dict)
    views_differ: tuple[str, ...] = ()
    cases: dict[str, Callable[[], Pairs]] = field(default_factory=dict)
    mended: dict[str, foreign_cute.Change] = field(default_factory=dict)

    def kernels(self, arch: str) -> list[str]:
        """Those for a GPU."""
        return [name for name in self.cases if arch in self.only.get(name, self.gpus)]

    def options_of(self, kernel: str) -> dict[str, Any]:
        """The options of `emulate` for a kernel."""
        return {"check_views": kernel not in self.views_differ}


def _cases(namespace: type) -> dict[str, Callable[[], Pairs]]:
    members = inspect.getmembers(namespace, inspect.isfunction)
    return {name: function for name, function in members if not name.startswith("_")}


TENSOR_CORES = ("sm_90", "sm_100")


def _only(namespace: type) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(_cases(namespace), TENSOR_CORES)


def _numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def _attention(q: Any, k: Any, v: Any, *, causal: bool = True) -> torch.Tensor:
    """Attention over (tokens, heads, width), with fewer heads of k and v."""
    k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], dim=1) for each in (k, v))
    heads = (each.float().transpose(0, 1) for each in (q, k, v))
    return F.scaled_dot_product_attention(*heads, is_causal=causal).transpose(0, 1)


def _with_gradients(
    function: Callable[..., Any], definition: Callable[..., Any], *inputs: torch.Tensor
) -> Pairs:
    leaves = [each.detach().clone().requires_grad_() for each in inputs]
    expected = definition(*leaves)
    gradient = torch.randn_like(expected)
    wanted = [expected, *torch.autograd.grad(expected, leaves, gradient.clone())]
    leaves = [each.detach().clone().requires_grad_() for each in inputs]
    found = function(*leaves)
    kept = found.detach().clone()
    gradients = torch.autograd.grad(found, leaves, gradient.clone())
    for a, b in zip([kept, *gradients], wanted, strict=True):
        yield a, b, 1e-5


class Unsloth:
    def rms_layernorm() -> Pairs:
        ops = importlib.import_module("unsloth.kernels.rms_layernorm")
        x, w = _numbers(2, 8, 128), _numbers(128)
        forward = functools.partial(ops.Fast_RMS_Layernorm.apply, x, w, 1e-6, False)
        yield forward(), x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w, 1e-5

    def layernorm() -> Pairs:
        ops = importlib.import_module("unsloth.kernels.layernorm")
        x, w, b = _numbers(8, 128), _numbers(128), _numbers(128)
        yield ops.Fast_Layernorm.apply(x, w, b, 1e-6), F.layer_norm(x, (128,), w, b, 1e-6), 1e-5

    def swiglu() -> Pairs:
        ops = importlib.import_module("unsloth.kernels.swiglu")
        e, g = _numbers(1, 4, 64, dtype=torch.float16), _numbers(1, 4, 64, dtype=torch.float16)
        yield ops.swiglu_fg_kernel(e, g), F.silu(e.float()) * g.float(), 2e-3

    def geglu() -> Pairs:
        ops = importlib.import_module("unsloth.kernels.geglu")
        e, g = _numbers(1, 4, 64), _numbers(1, 4, 64)
        yield ops.geglu_exact_forward_kernel(e, g), F.gelu(e) * g, 1e-5
        yield ops.geglu_approx_forward_kernel(e, g), F.gelu(e, approximate="tanh") * g, 1e-5

    def cross_entropy() -> Pairs:
        ops = importlib.import_module("unsloth.kernels.cross_entropy_loss")
        logits, labels = _numbers(1, 8, 256), torch.randint(0, 256, (1, 8))
        wanted = F.cross_entropy(logits.view(8, 256), labels.view(8))
        yield ops.fast_cross_entropy_loss(logits.clone(), labels), wanted, 1e-5


class Torchao:
    def intmm() -> Pairs:
        ops = importlib.import_module("torchao.kernel.intmm_triton")
        a, b = (torch.randint(-9, 9, shape, dtype=torch.int8) for shape in ((64, 64), (64, 64)))
        yield ops.int_matmul_cuda(a, b), a.int() @ b.int(), 0.0

    def fp8_blockwise() -> Pairs:
        ops = importlib.import_module("torchao.kernel.blockwise_quantization")
        x, w = _numbers(32, 256, dtype=torch.bfloat16), _numbers(128, 256, dtype=torch.bfloat16)
        codes, scales = ops.fp8_blockwise_act_quant(x, 128)
        yield codes.float() * scales.repeat_interleave(128, 1), x.float(), 0.04
        quantized, factors = ops.fp8_blockwise_weight_quant(w, 128)
        back = ops.fp8_blockwise_weight_dequant(quantized, factors, 128)
        yield back.float(), w.float(), 0.04
        found = ops.blockwise_fp8_gemm(codes, scales, quantized, factors)
        yield found.float(), x.float() @ w.float().T, 0.06


class FlagGems:
    def softmax() -> Pairs:
        ops, x = importlib.import_module("flag_gems.ops"), _numbers(8, 200)
        yield ops.softmax(x, -1), torch.softmax(x, -1), 1e-5

    def layer_norm() -> Pairs:
        ops = importlib.import_module("flag_gems.ops")
        x, w, b = _numbers(8, 100), _numbers(100), _numbers(100)
        yield ops.layer_norm(x, (100,), w, b)[0], F.layer_norm(x, (100,), w, b), 1e-5

    def mm() -> Pairs:
        ops = importlib.import_module("flag_gems.ops")
        a, b = (torch.randint(-3, 4, shape).half() for shape in ((64, 96), (96, 80)))
        yield ops.mm(a, b), a @ b, 1e-3

    def bmm() -> Pairs:
        ops = importlib.import_module("flag_gems.ops")
        a, b = (torch.randint(-3, 4, shape).half() for shape in ((2, 48, 64), (2, 64, 32)))
        yield ops.bmm(a, b), a @ b, 1e-3

    def sums() -> Pairs:
        ops, x = importlib.import_module("flag_gems.ops"), _numbers(40, 60)
        yield ops.sum(x), x.sum(), 1e-5
        yield ops.sum_dim(x, [1]), x.sum(1), 1e-5
        yield ops.cumsum(x, 1), x.cumsum(1), 1e-5
        yield ops.var_mean(x, [1])[0], x.var(1), 1e-5

    def extremes() -> Pairs:
        ops, x = importlib.import_module("flag_gems.ops"), _numbers(40, 60)
        yield ops.argmax(x, 1), x.argmax(1), 0.0
        yield ops.amax(x, [0]), x.amax(0), 0.0
        yield ops.topk(x, 5)[0], x.topk(5)[0], 0.0

    def elementwise() -> Pairs:
        ops, x, y = importlib.import_module("flag_gems.ops"), _numbers(7, 33), _numbers(7, 33)
        yield ops.gelu(x), F.gelu(x), 1e-5
        yield ops.silu(x), F.silu(x), 1e-5
        yield ops.add(x, y), x + y, 0.0
        yield ops.where_self(x > 0, x, y), torch.where(x > 0, x, y), 0.0

    def gathers() -> Pairs:
        ops, x = importlib.import_module("flag_gems.ops"), _numbers(20, 30)
        rows = torch.randint(0, 20, (8,))
        yield ops.index_select(x, 0, rows), x.index_select(0, rows), 0.0
        yield ops.embedding(x, rows), F.embedding(rows, x), 0.0
        yield ops.gather(x, 0, rows[:, None].repeat(1, 30)), x[rows], 0.0


class Sglang:
    _OPS = "sglang.kernels.ops"

    def prefill_attention() -> Pairs:
        ops = importlib.import_module("sglang.kernels.ops.attention.prefill_attention")
        q, k, v = (_numbers(48, heads, 64, dtype=torch.float16) for heads in (4, 2, 2))
        out, start, lengths = torch.empty_like(q), torch.tensor([0]), torch.tensor([48])
        ops.context_attention_fwd(q, k, v, out, start.int(), lengths.int(), 48)
        yield out, _attention(q, k, v), 2e-3

    def decode_attention() -> Pairs:
        ops = importlib.import_module("sglang.kernels.ops.attention.decode_attention")
        q, k, v = (_numbers(*shape, dtype=torch.float16)
                   for shape in ((2, 4, 64), (40, 2, 64), (40, 2, 64)))  # fmt: skip
        out, splits = torch.empty_like(q), 2
        pointers, indices = torch.tensor([0, 24, 40]).int(), torch.arange(40)
        ops.decode_attention_fwd(
            q, k, v, out, pointers, indices, torch.empty(2, 4, splits, 64),
            torch.empty(2, 4, splits), torch.full((2,), splits).int(), splits, 0.125, 1.0, 1.0,
        )  # fmt: skip
        for request, (first, last) in enumerate(((0, 24), (24, 40))):
            wanted = _attention(q[request][None], k[first:last], v[first:last], causal=False)
            yield out[request], wanted[0], 2e-3

    def merge_state() -> Pairs:
        ops = importlib.import_module("sglang.kernels.ops.attention.merge_state")
        (a, b), (s, t) = ([_numbers(*shape) for _ in range(2)] for shape in ((6, 4, 64), (6, 4)))
        found, _ = ops.merge_state_triton(a, s, b, t)
        weight = torch.sigmoid(s - t)[..., None]
        yield found, a * weight + b * (1 - weight), 1e-5

    def quantization() -> Pairs:
        ops = importlib.import_module("sglang.kernels.ops.quantization.int8_kernel")
        x = _numbers(8, 256, dtype=torch.bfloat16)
        codes, scales = ops.per_token_quant_int8(x)
        yield codes.float() * scales.float(), x.float(), 0.02
        codes, scales = ops.per_token_group_quant_int8(x, 128)
        yield codes.float() * scales.repeat_interleave(128, 1), x.float(), 0.02

    def block_int8_matmul() -> Pairs:
        ops = importlib.import_module("sglang.kernels.ops.gemm.int8_kernel")
        a, b = (torch.randint(-9, 9, shape, dtype=torch.int8) for shape in ((32, 256), (128, 256)))
        sa, sb = torch.rand(32, 2), torch.rand(1, 2)
        found = ops.w8a8_block_int8_matmul(a, b, sa, sb, [128, 128], torch.float32)
        scaled = (a.float() * sa.repeat_interleave(128, 1),
                  b.float() * sb.repeat_interleave(128, 1))  # fmt: skip
        yield found, scaled[0] @ scaled[1].T, 1e-3

    def gelu_and_mul() -> Pairs:
        ops = importlib.import_module("sglang.kernels.ops.activation.gelu_and_mul_triton")
        x = _numbers(8, 128)
        found = ops.gelu_and_mul_triton(x)
        found = found[0] if isinstance(found, tuple) else found
        yield found, F.gelu(x[:, :64]) * x[:, 64:], 1e-3


class Vllm:
    def prefill_attention() -> Pairs:
        ops = importlib.import_module("vllm.v1.attention.ops.triton_prefill_attention")
        q, k, v = (_numbers(48, heads, 64, dtype=torch.float16) for heads in (4, 2, 2))
        out, start, lengths = torch.empty_like(q), torch.tensor([0]), torch.tensor([48])
        ops.context_attention_fwd(q, k, v, out, start.int(), lengths.int(), 48)
        yield out, _attention(q, k, v), 2e-3

    def merge_attn_states() -> Pairs:
        ops = importlib.import_module("vllm.v1.attention.ops.triton_merge_attn_states")
        (a, b), (s, t) = ([_numbers(*shape) for _ in range(2)] for shape in ((6, 4, 64), (4, 6)))
        out = torch.empty_like(a)
        ops.merge_attn_states(out, a, s, b, t)
        weight = torch.sigmoid(s - t).T[..., None]
        yield out, a * weight + b * (1 - weight), 1e-5

    def awq() -> Pairs:
        ops = importlib.import_module("vllm.model_executor.layers.quantization.awq_triton")
        order, k, n, group = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7]), 128, 64, 64
        codes, zeros = torch.randint(0, 16, (k, n)), torch.randint(0, 16, (k // group, n))
        scales = _numbers(k // group, n, dtype=torch.float16)

        def packed(values: torch.Tensor) -> torch.Tensor:
            words = torch.zeros(len(values), n // 8, dtype=torch.int64)
            for place, column in enumerate(order.tolist()):
                words |= values.reshape(len(values), -1, 8)[..., place] << 4 * column
            return words.to(torch.uint32).view(torch.int32)

        whole = (each.repeat_interleave(group, 0) for each in (zeros, scales.float()))
        shift, factor = whole
        weights = (codes - shift) * factor
        yield ops.awq_dequantize_triton(packed(codes), scales, packed(zeros)), weights, 1e-3
        x = _numbers(16, k, dtype=torch.float16)
        found = ops.awq_gemm_triton(x, packed(codes), scales, packed(zeros), 1)
        yield found, x.float() @ weights, 2e-3


class TileLang:
    def matmul() -> Pairs:
        yield from _tilelang_product(torch.float16, transposed=False)

    def matmul_transposed() -> Pairs:
        yield from _tilelang_product(torch.float16, transposed=True)

    def matmul_bf16() -> Pairs:
        yield from _tilelang_product(torch.bfloat16, transposed=True)

    def matmul_int8() -> Pairs:
        yield from _tilelang_product(torch.int8, transposed=True)

    def softmax() -> Pairs:
        x, y = _numbers(16, 256), torch.zeros(16, 256)
        _tilelang("softmax", X=x, Y=y)
        yield y, torch.softmax(x, -1), 1e-5

    def add() -> Pairs:
        x, y, z = _numbers(16, 256), _numbers(16, 256), torch.zeros(16, 256)
        _tilelang("add", X=x, Y=y, Z=z)
        yield z, x + y, 0.0


def _tilelang(name: str, *arguments: str | bool, **arrays: torch.Tensor) -> None:
    from foreign_tilelang import launch

    launch(name, arguments, CHOSEN, **arrays)


def _tilelang_product(kind: torch.dtype, *, transposed: bool) -> Pairs:
    sums = torch.int32 if kind == torch.int8 else torch.float32
    a, b = (torch.randint(-3, 4, shape).to(kind) for shape in ((128, 96), (96, 128)))
    c = torch.zeros(128, 128, dtype=sums)
    names = (str(each).removeprefix("torch.") for each in (kind, sums))
    given = {"A": a, "B": b.T.contiguous() if transposed else b, "C": c}
    _tilelang("matmul", *names, transposed, **given)
    yield c, a.float() @ b.float(), 0.0


class Inductor:
    def layer_norm() -> Pairs:
        x, w, b = _numbers(16, 256), _numbers(256), _numbers(256)
        yield from _inductor(lambda: F.layer_norm(x, (256,), w, b) * torch.sigmoid(x))

    def softmax() -> Pairs:
        x = _numbers(4, 3000)
        yield from _inductor(lambda: torch.softmax(x / 3, -1))

    def transposed_sum() -> Pairs:
        x, y = _numbers(96, 130), _numbers(130, 96)
        yield from _inductor(lambda: (x.T + y).sum(1))

    def cumsum() -> Pairs:
        x = _numbers(8, 200)
        yield from _inductor(lambda: x.cumsum(1))

    def cross_entropy() -> Pairs:
        x, y = _numbers(16, 300), torch.randint(0, 300, (16,))
        yield from _inductor(lambda: F.cross_entropy(x, y))


class Tlx:
    def gemm_pipelined() -> Pairs:
        yield from _tlx("product", "gemm_pipelined")

    def gemm_ws() -> Pairs:
        yield from _tlx("product", "gemm_ws")
        if CHOSEN["arch"] == "sm_100":
            yield from _tlx("product", "gemm_2cta")

    def fa_ws() -> Pairs:
        yield from _tlx("attention", "fa_ws")


def _tlx(kind: str, name: str) -> Pairs:
    import foreign_tlx

    family = "hopper" if CHOSEN["arch"] == "sm_90" else "blackwell"
    yield (*getattr(foreign_tlx, kind)(f"{family}_{name}"), 1e-3)


def _inductor(function: Callable[[], Any], most: float = 1e-5) -> Pairs:
    from foreign_inductor import compiled

    capability = int(CHOSEN["arch"].removeprefix("sm_"))
    yield compiled(function, capability), function(), most


def _mixed_in(name: str) -> dict[str, Callable[[], Pairs]]:
    """The tests of `third_party_kernels`, which compare by themselves."""
    kernels = getattr(importlib.import_module("third_party_kernels"), name)

    def run(test: str) -> Pairs:
        getattr(kernels(), test)(CHOSEN["arch"])
        yield from ()

    tests = [test for test in dir(kernels) if test.startswith("test_")]
    return {test.removeprefix("test_"): functools.partial(run, test) for test in tests}


CHOSEN: dict[str, Any] = {"arch": "sm_90"}
"""The GPU, and how a case runs that enters it itself; such cases count their launches here."""

TILELANG_NEEDS = ("apache-tvm-ffi<0.1.13,>=0.1.11", "z3-solver<4.15.5,>=4.13.0", "cloudpickle",
                  "ml_dtypes", "psutil", "tqdm")  # fmt: skip
"""What TileLang 0.1.15 needs, but for torch and its extension of it."""
VLLM = (
    "vllm.v1.attention.ops", "vllm.v1.kv_cache_interface", "vllm.lora.ops",
    "vllm.model_executor.determinism", "vllm.model_executor.layers.fused_moe.fused_moe",
    "vllm.model_executor.layers.quantization.awq_triton",
    "vllm.model_executor.layers.quantization.compressed_tensors.triton_scaled_mm",
)  # fmt: skip
VLLM_VALUES = {
    "vllm.triton_utils.triton": triton,
    "vllm.triton_utils.tl": triton.language,
    "vllm.envs.VLLM_BATCH_INVARIANT": False,
    "vllm.platforms.current_platform.fp8_dtype": lambda: torch.float8_e4m3fn,
    "vllm.utils.math_utils.RCP_LN2": 1.4426950408889634,
    "vllm.utils.platform_utils.num_compute_units": lambda device: 8,
    "vllm.model_executor.layers.fused_moe.utils.resolve_moe_use_td": lambda: False,
    "vllm.model_executor.layers.fused_moe.utils.enable_swap_ab": lambda m, n: False,
}
PROJECTS = (
    Project("liger-kernel", cases=_mixed_in("LigerKernels") | _cases(serving.Liger),
            only=_only(serving.Liger)),
    Project("torchao", cases=_cases(Torchao)),
    Project("flag_gems", needs=("pyyaml", "sqlalchemy", "packaging"),
            environment=(("GEMS_VENDOR", "nvidia"),), cases=_cases(FlagGems),
            views_differ=tuple(_cases(FlagGems))),
    Project("tilelang", needs=TILELANG_NEEDS, cases=_cases(TileLang)),
    Project("torch", cases=_cases(Inductor)),
    Project("quack-kernels", needs=foreign_cute.NEEDS, environment=foreign_cute.DSL,
            gpus=("sm_90", "sm_100"), cases=_cases(foreign_cute.Quack)),
    Project("flash-attn-4", needs=foreign_cute.NEEDS, bare=foreign_cute.BARE,
            environment=foreign_cute.DSL, gpus=("sm_90", "sm_100"),
            cases=_cases(foreign_cute.FlashAttention), mended=foreign_cute.MENDED),
    Project("fbtriton", environment=(("PYTHONPATH", "{folder}"),), gpus=("sm_90", "sm_100"),
            cases=_cases(Tlx)),
    Project("fbgemm-gpu-genai", ("fbgemm_gpu.experimental.gemm", "fbgemm_gpu.triton"),
            gpus=TENSOR_CORES, cases=_cases(serving.Fbgemm)),
    Project("flashinfer-python", ("flashinfer.triton",), gpus=TENSOR_CORES,
            cases=_cases(serving.FlashInfer)),
    Project("unsloth-zoo", ("unsloth_zoo.mxfp4_gemm", "unsloth_zoo.mxfp4_dequant"),
            gpus=TENSOR_CORES, cases=_cases(serving.UnslothZoo)),
    Project("sageattention", gpus=TENSOR_CORES, cases=_cases(serving.SageAttention),
            mended=serving.SAGE),
    Project("cut-cross-entropy", gpus=TENSOR_CORES, cases=_cases(serving.CutCrossEntropy)),
    Project("flash-linear-attention", needs=("einops",), gpus=TENSOR_CORES,
            bare=("flash-linear-attention", "fla-core"), cases=_cases(serving.FlashLinear)),
    Project("unsloth", ("unsloth.kernels",), cases=_cases(Unsloth)),
    Project("sglang", ("sglang.kernels.ops",), cases=_cases(Sglang) | _cases(serving.Sglang),
            only=_only(serving.Sglang) | {"gluon_decode_attention": ("sm_100",)}),
    Project("vllm", VLLM, VLLM_VALUES, environment=(("PYTHONPATH", "{folder}/vllm/third_party"),),
            views_differ=("lora", "matmul_ogs"), only=_only(serving.Vllm),
            cases=_cases(Vllm) | _cases(serving.Vllm)),
)  # fmt: skip
