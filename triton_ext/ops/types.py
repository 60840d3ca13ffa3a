"""Which types of operands and outputs there are kernels for."""

from __future__ import annotations

import torch

from triton_ext.errors import LayoutError
from triton_ext.kernels.choice.candidates import is_new
from triton_ext.kernels.element_types import (
    BLOCK_SCALED,
    C_BYTES,
    ELEMENT_BYTES,
    ELEMENT_TYPES,
    MIXED,
)

_OPERANDS = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
    torch.int8: "int8",
    torch.float32: "tf32",
}
_BLOCK_SCALED = {
    (torch.float8_e4m3fn, torch.float8_e8m0fnu): "mxfp8",
    (torch.float8_e5m2, torch.float8_e8m0fnu): "mxfp8_e5m2",
    (torch.float4_e2m1fn_x2, torch.float8_e8m0fnu): "mxfp4",
    (torch.float4_e2m1fn_x2, torch.float8_e4m3fn): "nvfp4",
}
"""By the types of elements and of the scales of their blocks."""
SCALE_LENGTHS = {scales: BLOCK_SCALED[name].length for (_, scales), name in _BLOCK_SCALED.items()}
"""How many elements along K have one scale, by its type."""
_OUTPUTS = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.int32: "int32",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
}
_MIXED = {types: name for name, types in MIXED.items()}
OPERAND_NAMES = {dtype: name for dtype, name in _OPERANDS.items() if name in ELEMENT_BYTES}
"""What the kernels call the types of operands."""
OUTPUT_NAMES = {dtype: name for dtype, name in _OUTPUTS.items() if name in C_BYTES}
"""What they call the types of outputs."""
HALF_TYPES = frozenset(dtype for dtype, name in OPERAND_NAMES.items() if name in ELEMENT_TYPES)
"""The types of 16 bits: the only operands that need not be K-major on sm_90."""


FP8_TYPES = frozenset((torch.float8_e4m3fn, torch.float8_e5m2))
WIDE_TYPES = frozenset((torch.bfloat16, torch.float16, torch.float32))
"""The types of outputs that PyTorch makes of fp8, and that are not saturated."""


def has_both_majors(dtype: torch.dtype, arch: int) -> bool:
    """Whether an architecture's tensor cores read operands of a type that are MN-major, too."""
    return dtype in HALF_TYPES or (arch == 100 and dtype.itemsize == 1)


def has_all_fp8(arch: int) -> bool:
    """Whether an architecture's kernels multiply two types of fp8, and can add up products of fp8
    in fp32: on Hopper those from Triton 3.9 on.
    """
    return arch != 90 or is_new()


def operand_name(a: torch.dtype, b: torch.dtype, scales: torch.dtype | None = None) -> str:
    """What the kernels call types of A and B that they take, with scales of that type for their
    blocks.
    """
    if scales is not None:
        return _BLOCK_SCALED[a, scales]
    return OPERAND_NAMES[a] if a == b else _MIXED[OPERAND_NAMES[a], OPERAND_NAMES[b]]


def bias_type(output: torch.dtype) -> torch.dtype:
    """The type of the bias of an output."""
    return torch.bfloat16 if output in FP8_TYPES else output


def output_type(operands: torch.dtype) -> torch.dtype:
    """The type of the output if none is asked for."""
    if operands in HALF_TYPES:
        return operands
    return torch.float32 if operands.is_floating_point else torch.int32


def _unsupported_by_blocks(a: torch.dtype, b: torch.dtype) -> LayoutError | None:
    """What is wrong with operands that have fp32 scales of blocks."""
    for name, dtype in (("a", a), ("b", b)):
        if dtype not in FP8_TYPES:
            rule = f"must be one of {sorted(map(str, FP8_TYPES))} with fp32 scales of blocks"
            return LayoutError(f"{name}.dtype", dtype, rule)
    return None


def unsupported(
    a: torch.dtype,
    b: torch.dtype,
    out: torch.dtype | None,
    arch: int,
    scales: torch.dtype | None = None,
) -> LayoutError | None:
    """What is wrong with a combination of types on an architecture, or None. `scales`: of blocks of
    the operands."""
    if scales == torch.float32:  # which threads apply
        return _unsupported_by_blocks(a, b) or unsupported(a, b, out, arch)
    if scales is not None and arch < 100:
        rule = f"scales of blocks need Blackwell, and this is sm_{arch}; fp32 scales do not"
        return LayoutError("scale_a.dtype", scales, rule)
    for name, dtype in (("a", a), ("b", b)):
        if scales is not None:
            if (dtype, scales) in _BLOCK_SCALED:
                continue
            legal = sorted(str(key) for key, value in _BLOCK_SCALED if value == scales)
            rule = f"must be one of {legal} with scales of {scales}"
        elif dtype not in OPERAND_NAMES:
            rule = f"must be one of {sorted(map(str, OPERAND_NAMES))}"
        elif dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest":
            rule = 'is multiplied as tf32, which torch.set_float32_matmul_precision("high") allows'
        else:
            continue
        return LayoutError(f"{name}.dtype", dtype, f'{rule}; or give fallback="torch"')
    if a != b and not (scales is None and {a, b} <= FP8_TYPES):
        return LayoutError("b.dtype", b, f"must be that of a, {a}")
    if a != b and not has_all_fp8(arch):
        return LayoutError("b.dtype", b, f"must be that of a, {a}, on Hopper before Triton 3.9")
    if out is None or out == output_type(a):
        return None
    outputs = set(OUTPUT_NAMES)
    if a.is_floating_point:
        outputs.discard(torch.int32)
    if out not in outputs:
        rule = f'must be one of {sorted(map(str, outputs))}; or give fallback="torch"'
        return LayoutError("out_dtype", out, rule)
    return None
