"""What of vLLM's interfaces a plugin for linear layers meets: names, signatures, and which part of
a parameter is loaded. vLLM itself is no dependency.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn


class LoadedParameter(nn.Parameter):
    """A parameter that knows how it is loaded, and that is not a plain one."""

    def __new__(cls, data: Tensor, **_: Any) -> LoadedParameter:
        return super().__new__(cls, data, requires_grad=False)

    def __init__(self, data: Tensor, *, input_dim: int, output_dim: int, weight_loader: Any):
        self.input_dim, self.output_dim = input_dim, output_dim
        self.weight_loader = weight_loader

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class ModelWeightParameter(LoadedParameter):
    pass


class BlockQuantScaleParameter(LoadedParameter):
    pass


class LinearMethodBase(ABC):
    @abstractmethod
    def create_weights(
        self, layer: nn.Module, input_size_per_partition: int, output_partition_sizes: list[int],
        input_size: int, output_size: int, params_dtype: torch.dtype, **extra_weight_attrs: Any,
    ) -> None: ...  # fmt: skip

    @abstractmethod
    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor: ...

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        return


class UnquantizedLinearMethod(LinearMethodBase):
    def create_weights(self, layer, k, parts, input_size, output_size, dtype, **attributes):
        weight = torch.empty(sum(parts), k, dtype=dtype)
        loader = attributes["weight_loader"]
        made = ModelWeightParameter(weight, input_dim=1, output_dim=0, weight_loader=loader)
        layer.register_parameter("weight", made)

    def apply(self, layer, x, bias=None):
        raise NotImplementedError("by vLLM")


class LinearBase(nn.Module):
    """A layer of several matrices, whose columns `ranks` share, as one of them has it."""

    def __init__(
        self, k: int, sizes: list[int], config: Any, *, prefix: str = "mlp", bias: bool = False,
        ranks: int = 1, dtype: torch.dtype = torch.bfloat16,
    ) -> None:  # fmt: skip
        super().__init__()
        self.parts = [size // ranks for size in sizes]
        self.quant_method = config.get_quant_method(self, prefix)
        self.quant_method.create_weights(
            self, k, self.parts, k, sum(sizes), dtype, weight_loader=self.load
        )
        self.bias = nn.Parameter(torch.zeros(sum(self.parts), dtype=dtype)) if bias else None

    def load(self, parameter: LoadedParameter, loaded: Tensor, part: int) -> None:
        """Copy a matrix, or its scales, to the part of a parameter that is its own."""
        first, size = sum(self.parts[:part]), self.parts[part]
        if isinstance(parameter, BlockQuantScaleParameter):
            rows = self.weight_block_size[0]
            first, size = -(-first // rows), -(-size // rows)
        parameter.data.narrow(parameter.output_dim, first, size).copy_(loaded)

    def forward(self, x: Tensor) -> Tensor:
        return self.quant_method.apply(self, x, self.bias)


class Fp8Config:
    def __init__(
        self, is_checkpoint_fp8_serialized: bool = False, activation_scheme: str = "dynamic",
        ignored_layers: list[str] | None = None, weight_block_size: list[int] | None = None,
    ) -> None:  # fmt: skip
        self.is_checkpoint_fp8_serialized = is_checkpoint_fp8_serialized
        self.ignored_layers = ignored_layers or []
        self.weight_block_size = weight_block_size
        self.packed_modules_mapping: dict[str, list[str]] = {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Fp8Config:
        return cls(
            "fp8" in config["quant_method"], config["activation_scheme"],
            config.get("modules_to_not_convert"), config.get("weight_block_size"),
        )  # fmt: skip

    def get_quant_method(self, layer: nn.Module, prefix: str) -> str:
        return "vLLM's own"


class Registry:
    """vLLM's methods of quantization, by name."""

    def __init__(self) -> None:
        self.names, self.configs = ["fp8"], {}

    def register(self, name: str) -> Any:
        def add(config: type) -> type:
            assert issubclass(config, Fp8Config), config
            assert name not in self.names, name
            self.names.append(name)
            self.configs[name] = config
            return config

        return add


def install(patch: Any) -> SimpleNamespace:
    """Let ``import vllm`` find all of this; returns the registry, and the classes whose names
    weights' second loader knows.

    Args:
        patch: pytest's monkeypatch.
    """
    registry, loaded = Registry(), []

    def knows_loader(method: type) -> type:
        loaded.append(method)
        return method

    layers = "vllm.model_executor.layers"
    contents = {
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
        "vllm.model_executor.parameter": {
            "ModelWeightParameter": ModelWeightParameter,
            "BlockQuantScaleParameter": BlockQuantScaleParameter,
        },
        f"{layers}.linear": {
            "LinearBase": LinearBase, "LinearMethodBase": LinearMethodBase,
            "UnquantizedLinearMethod": UnquantizedLinearMethod,
            "register_weight_loader_v2_supported_method": knows_loader,
        },
        f"{layers}.quantization": {
            "QUANTIZATION_METHODS": registry.names,
            "register_quantization_config": registry.register,
        },
        f"{layers}.quantization.fp8": {"Fp8Config": Fp8Config},
        f"{layers}.quantization.utils.quant_utils": {
            "is_layer_skipped": lambda prefix, ignored_layers, fused_mapping: (
                prefix in ignored_layers
            )
        },
    }  # fmt: skip
    for path, values in contents.items():
        names = path.split(".")
        for depth in range(1, len(names) + 1):
            name = ".".join(names[:depth])
            if name not in sys.modules:
                module = ModuleType(name)
                patch.setitem(sys.modules, name, module)
                if depth > 1:
                    setattr(sys.modules[".".join(names[: depth - 1])], names[depth - 1], module)
        for name, value in values.items():
            setattr(sys.modules[path], name, value)
    return SimpleNamespace(registry=registry, loaded=loaded)
