"""vLLM's linear layers by triton_ext, as an out-of-tree plugin: bf16 and fp16, and fp8 with scales
of 128x128 for weights and of 1x128 for activations. Experts and the cache stay vLLM's own.

vLLM calls in each of its processes what the entry points of `vllm.general_plugins` name. A package
with this file as its module needs, in its pyproject.toml,

    [project.entry-points."vllm.general_plugins"]
    triton_ext = "vllm_linear:register"

and then ``vllm.LLM(model, quantization="triton_ext")`` takes it, for a checkpoint in bf16, or in
fp8 as DeepSeek-V3 and Qwen3 have it. With VLLM_BATCH_INVARIANT=1 kernels that divide K are not
chosen. It is tested against stubs of vLLM's interfaces (tests/ops/test_vllm_linear.py).
"""

from __future__ import annotations

from typing import Any

import torch
import vllm.envs
from torch import Tensor
from torch.nn import Module, Parameter
from vllm.model_executor.layers.linear import (
    LinearBase,
    LinearMethodBase,
    UnquantizedLinearMethod,
    register_weight_loader_v2_supported_method,
)
from vllm.model_executor.layers.quantization import (
    QUANTIZATION_METHODS,
    register_quantization_config,
)
from vllm.model_executor.layers.quantization.fp8 import Fp8Config
from vllm.model_executor.layers.quantization.utils.quant_utils import is_layer_skipped
from vllm.model_executor.parameter import BlockQuantScaleParameter, ModelWeightParameter

import triton_ext

NAME = "triton_ext"
BLOCK = 128


def keep_plain(layer: Module, *names: str) -> None:
    """Replace vLLM's parameters, which are there to be loaded, by PyTorch's: its compiler and
    triton_ext's shortest way take no subclasses.
    """
    for name in names:
        setattr(layer, name, Parameter(getattr(layer, name).data, requires_grad=False))


@register_weight_loader_v2_supported_method
class WideLinear(UnquantizedLinearMethod):
    """Weights of bf16 or fp16, created as vLLM does."""

    def process_weights_after_loading(self, layer: Module) -> None:
        keep_plain(layer, "weight")

    def apply(self, layer: Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        invariant = vllm.envs.VLLM_BATCH_INVARIANT or None
        return triton_ext.linear(x, layer.weight, bias, batch_invariant=invariant)


@register_weight_loader_v2_supported_method
class BlockLinear(LinearMethodBase):
    """Weights of e4m3 with a scale for each 128x128, under the names that checkpoints have."""

    def create_weights(
        self,
        layer: Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        k, n = input_size_per_partition, sum(output_partition_sizes)
        followed = output_partition_sizes[:-1] if n == output_size else output_partition_sizes
        for size in (*followed, *([] if k == input_size else [k])):
            if size % BLOCK:  # two matrices, or ranks, would share a scale
                raise ValueError(f"a part of {size} must be a multiple of {BLOCK}")
        layer.weight_block_size = [BLOCK, BLOCK]  # by which vLLM's loaders place parts of scales
        common = {
            "input_dim": 1, "output_dim": 0, "weight_loader": extra_weight_attrs["weight_loader"]
        }  # fmt: skip
        weight = torch.empty(n, k, dtype=torch.float8_e4m3fn)
        scales = torch.empty(-(-n // BLOCK), -(-k // BLOCK), dtype=torch.float32)
        layer.register_parameter("weight", ModelWeightParameter(data=weight, **common))
        scales_parameter = BlockQuantScaleParameter(data=scales, **common)
        layer.register_parameter("weight_scale_inv", scales_parameter)

    def process_weights_after_loading(self, layer: Module) -> None:
        keep_plain(layer, "weight", "weight_scale_inv")

    def apply(self, layer: Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        rows, scales = triton_ext.quantize_1x128(x.reshape(-1, x.shape[-1]))
        made = triton_ext.scaled_mm(
            rows, layer.weight.t(), scales, layer.weight_scale_inv.t(), bias=bias,
            out_dtype=x.dtype, batch_invariant=vllm.envs.VLLM_BATCH_INVARIANT or None,
        )  # fmt: skip
        return made.view(*x.shape[:-1], made.shape[-1])


class Config(Fp8Config):
    """vLLM's configuration of fp8, with other linear layers; without an fp8 checkpoint, of bf16."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        found = self.weight_block_size
        if self.is_checkpoint_fp8_serialized and found != [BLOCK, BLOCK]:
            raise ValueError(f"weight_block_size = {found}: must be {[BLOCK, BLOCK]}")

    @classmethod
    def get_name(cls) -> str:
        return NAME

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    @classmethod
    def get_min_capability(cls) -> int:
        return 90

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        """Take an fp8 checkpoint where this plugin is asked for."""
        return NAME if user_quant == NAME and hf_quant_cfg.get("quant_method") == "fp8" else None

    def get_quant_method(self, layer: Module, prefix: str) -> Any:
        if not isinstance(layer, LinearBase):
            is_fp8 = self.is_checkpoint_fp8_serialized
            return super().get_quant_method(layer, prefix) if is_fp8 else None
        if not self.is_checkpoint_fp8_serialized or is_layer_skipped(
            prefix=prefix,
            ignored_layers=self.ignored_layers,
            fused_mapping=self.packed_modules_mapping,
        ):
            return WideLinear()
        return BlockLinear()


def register() -> None:
    """The plugin's entry point; vLLM may call it more than once."""
    if NAME not in QUANTIZATION_METHODS:
        register_quantization_config(NAME)(Config)
