"""The Hopper GPUs whose times the cost model knows."""

from __future__ import annotations

from typing import Literal, get_args

from triton_ext.errors import LayoutError

GpuModel = Literal["h100", "h200"]
MODELS: tuple[GpuModel, ...] = get_args(GpuModel)


def model_of(name: str | None) -> GpuModel:
    """Which of them stands for a GPU: the H200 for those with its memory, and for emulated ones;
    the H100 for others. `name`: as ``torch.cuda.get_device_name``; None for an emulated one."""
    if name is None or "H200" in name or "emulated" in name.lower():
        return "h200"
    return "h100"


def check_model(gpu: str) -> None:
    """Raise LayoutError unless it is one of `MODELS`."""
    if gpu not in MODELS:
        raise LayoutError("gpu", gpu, f"must be one of {', '.join(MODELS)}")
