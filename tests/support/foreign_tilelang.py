"""Kernels in TileLang: lowered by its package, compiled to PTX by nvcc, run by `run_ptx`.

TileLang's own launches need torch's build for CUDA. What its host code does instead is read there:
the tensor maps that it makes, and the arguments of the launch.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from triton_ext.emulator import run_ptx
from triton_ext.emulator.host.cuda.nvcc import compiler
from triton_ext.hardware import tensor_map as maps

_MAP = re.compile(r'call_packed\("__tvm_tensormap_create_tiled", (\w+), ([^()]*)\)')
_LAUNCH = re.compile(r'call_packed\("(\w+_kernel)", ([^()]*)\)')


@functools.cache
def _compiled(name: str, arguments: Any, arch: str) -> tuple[str, str, tuple[str, ...]]:
    """The host code, the PTX, and which axes of the grid and the block the launch gives."""
    import tilelang
    import tilelang_kernels
    from tilelang.engine import lower

    with tilelang.tvm.target.Target({"kind": "cuda", "arch": arch}) as target:
        lowered = lower(getattr(tilelang_kernels, name)(*arguments), target=target)
    (kernel,) = dict(lowered.device_mod.functions).values()
    root = Path(tilelang.__file__).parent
    folders = (root / "src", root / "3rdparty" / "cutlass" / "include")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.cu")
        source.write_text(lowered.kernel_source, encoding="utf-8")
        command = [
            str(compiler()), "-std=c++17", f"-arch={arch}a", "-lineinfo", "-ptx", "-w",
            *(f"-I{each}" for each in folders), "-o", f"{folder}/ptx", str(source),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        ptx = Path(folder, "ptx").read_text(encoding="utf-8")
    axes = tuple(str(each) for each in kernel.attrs["tirx.kernel_launch_params"])
    return str(lowered.host_mod), ptx, axes


def _numbers(text: str) -> list[int]:
    return [ast.literal_eval(part.strip()) for part in text.split(",")]


def _tensor_map(text: str, arrays: dict[str, Any]) -> maps.TensorMap:
    """What the call makes, as ``cuTensorMapEncodeTiled`` takes it: type, rank, address, then sizes,
    strides in bytes (the element's, too), the box, its steps, and four enumerations."""
    kind, rank, name, *rest = (part.strip() for part in text.split(","))
    numbers, axes = _numbers(",".join(rest)), int(rank)
    shape, strides, box, steps = (numbers[axes * n : axes * (n + 1)] for n in range(4))
    interleave, swizzle, promotion, fill = numbers[4 * axes :]
    assert (interleave, fill) == (0, 0), text
    return maps.TensorMap(
        data_type=maps.DataType(int(kind)),
        global_address=arrays[name].data_ptr(),
        global_dims=tuple(shape),
        global_strides=tuple(strides[1:]),
        box_dims=tuple(box),
        element_strides=tuple(steps),
        swizzle=maps.TensorSwizzle(swizzle),
        l2_promotion=maps.L2Promotion(promotion),
    )


def launch(name: str, arguments: Any, chosen: dict[str, Any], **arrays: torch.Tensor) -> None:
    """Run the only kernel of a program of `tilelang_kernels` on tensors, by their names there.

    Args:
        arguments: of the function that makes the program.
        chosen: the GPU ("arch"), the schedule, and whether it is strict; launches are counted.
    """
    host, ptx, axes = _compiled(name, arguments, chosen["arch"])
    made = {name: _tensor_map(text, arrays) for name, text in _MAP.findall(host)}
    ((kernel, text),) = _LAUNCH.findall(host)
    given = [part.strip() for part in text.split(",")]
    sizes = dict(zip(axes, map(int, given[-len(axes) :]), strict=True))
    grid, block = (
        tuple(sizes.get(f"{of}.{axis}", 1) for axis in "xyz") for of in ("blockIdx", "threadIdx")
    )
    arguments = [made.get(name, arrays.get(name)) for name in given[: -len(axes)]]
    dynamic = sizes.get("tirx.use_dyn_shared_memory", 0)
    run_ptx(
        ptx, kernel=kernel, grid=grid, block=block, args=arguments, dynamic_smem_bytes=dynamic,
        buffers=list(arrays.values()), schedule=chosen["schedule"], seed=1,
        strict=chosen["strict"],
    )  # fmt: skip
    chosen["launches"] += 1
