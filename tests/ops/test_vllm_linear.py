"""`examples/vllm_linear.py`, on stubs of vLLM's interfaces, beside products in float64."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", minversion="3.9", reason="promoted sums need it")

import vllm_stubs  # noqa: E402
from sites import ROOT  # noqa: E402

import triton_ext  # noqa: E402
from triton_ext.ops import planning, plans  # noqa: E402

PLUGIN = ROOT / "examples/vllm_linear.py"
FP8 = {
    "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head"],
}  # fmt: skip


@pytest.fixture(scope="module")
def vllm():
    """vLLM with the plugin: what was registered, and the plugin's module."""
    with pytest.MonkeyPatch.context() as patch:
        found = vllm_stubs.install(patch)
        spec = importlib.util.spec_from_file_location("vllm_linear", PLUGIN)
        plugin = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "vllm_linear", plugin)  # where a compiler looks
        spec.loader.exec_module(plugin)
        plugin.register()
        plugin.register()  # as vLLM may
        config = found.registry.configs[plugin.NAME]
        yield SimpleNamespace(plugin=plugin, config=config, loaded=found.loaded)
        torch.compiler.reset()


def blocks_of(w, rows):
    """DeepSeek-V3's rule in PyTorch: values in e4m3, and a scale for each rows x 128."""
    made = torch.zeros(w.shape).to(torch.float8_e4m3fn)
    scales = torch.zeros(-(-w.shape[0] // rows), -(-w.shape[1] // 128))
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = slice(i * rows, (i + 1) * rows), slice(j * 128, (j + 1) * 128)
            scales[i, j] = w[block].abs().max().float() / 448
            made[block] = (w[block].float() / scales[i, j]).to(torch.float8_e4m3fn)
    return made, scales


def wide(values, scales, rows):
    """The numbers that quantized ones stand for, in float64."""
    of_each = scales.double().repeat_interleave(rows, 0).repeat_interleave(128, 1)
    return values.double() * of_each[: values.shape[0], : values.shape[1]]


def loaded(layer, weights):
    """A layer with the parts of a checkpoint."""
    for part, tensors in enumerate(weights):
        for name, tensor in tensors.items():
            parameter = getattr(layer, name)
            parameter.weight_loader(parameter, tensor, part)
    layer.quant_method.process_weights_after_loading(layer)
    return layer


def fp8_layer(vllm, sizes, k=256, **options):
    """It, and the matrix that its weights stand for."""
    layer = vllm_stubs.LinearBase(k, sizes, vllm.config.from_config(FP8), **options)
    parts = [blocks_of(torch.randn(size, k).bfloat16(), 128) for size in sizes]
    names = "weight", "weight_scale_inv"
    loaded(layer, [dict(zip(names, part, strict=True)) for part in parts])
    return layer, torch.cat([wide(*part, 128) for part in parts])


def close(made, expected):
    return (made.double() - expected).norm() <= 2**-8 * expected.norm()


def test_fp8_with_scales_by_blocks(vllm):
    """Two matrices in one layer, the second of no whole block, and a bias; any number of tokens."""
    layer, w = fp8_layer(vllm, [128, 72], bias=True)
    layer.bias.data = torch.randn(200).bfloat16()
    assert type(layer.quant_method) in vllm.loaded
    assert type(layer.weight) is type(layer.weight_scale_inv) is torch.nn.Parameter
    x = torch.randn(2, 20, 256).bfloat16()
    few = x[:, :7].contiguous()
    expected = wide(*blocks_of(x.view(40, 256), 1), 1) @ w.t() + layer.bias.double()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    with triton_ext.emulate("sm_90"), torch.inference_mode():
        made = layer(x)
        assert close(made.view(40, 200), expected)
        assert torch.equal(compiled(x), made)
        with torch._dynamo.config.patch(error_on_recompile=True):  # the graph is for any number
            assert torch.equal(compiled(few), made[:, :7])


@pytest.mark.parametrize("config", [None, FP8], ids=["a model in bf16", "a layer left in bf16"])
def test_bf16(vllm, config):
    config = vllm.config() if config is None else vllm.config.from_config(config)
    layer = vllm_stubs.LinearBase(64, [24, 40], config, prefix="lm_head", bias=True)
    assert type(layer.quant_method) in vllm.loaded
    parts = [torch.randn(size, 64).bfloat16() for size in (24, 40)]
    loaded(layer, [{"weight": part} for part in parts])
    assert type(layer.weight) is torch.nn.Parameter
    x = torch.randn(3, 5, 64).bfloat16()
    with triton_ext.emulate("sm_90"), torch.inference_mode():
        made = layer(x)
    assert close(made, x.double() @ torch.cat(parts).double().t())


def test_the_same_bits_where_vllm_asks_for_them(vllm, monkeypatch):
    layer, _ = fp8_layer(vllm, [128], k=128)
    other = loaded(
        vllm_stubs.LinearBase(64, [24], vllm.config()), [{"weight": torch.ones(24, 64).bfloat16()}]
    )
    asked, choose = [], planning.choose_config
    with (
        mock.patch.object(
            planning,
            "choose_config",
            lambda *a, **o: asked.append(o["in_order"]) or choose(*a, **o),
        ),
        triton_ext.emulate("sm_90"),
    ):
        for wanted in (False, True):
            monkeypatch.setattr(vllm.plugin.vllm.envs, "VLLM_BATCH_INVARIANT", wanted)
            plans.clear_cache()
            layer(torch.ones(4, 128).bfloat16())
            other(torch.ones(4, 64).bfloat16())
    assert asked == [False, False, True, True]


def test_who_gets_what(vllm):
    """Experts and the cache of an fp8 model are vLLM's; a checkpoint is taken if asked for."""
    assert vllm.config.from_config(FP8).get_quant_method(torch.nn.Module(), "experts") == (
        "vLLM's own"
    )
    assert vllm.config().get_quant_method(torch.nn.Module(), "experts") is None
    takes = vllm.config.override_quantization_method
    assert takes(FP8, "triton_ext") == vllm.config.get_name()
    assert takes(FP8, None) is takes({"quant_method": "awq"}, "triton_ext") is None


def test_what_has_no_such_blocks_is_refused(vllm):
    with pytest.raises(ValueError, match=r"weight_block_size = \[64, 128\]"):
        vllm.config.from_config({**FP8, "weight_block_size": [64, 128]})
    for sizes, ranks in (([72, 128], 1), ([256], 4)):
        with pytest.raises(ValueError, match="must be a multiple of 128"):
            vllm_stubs.LinearBase(256, sizes, vllm.config.from_config(FP8), ranks=ranks)
