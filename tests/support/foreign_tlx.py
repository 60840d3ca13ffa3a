"""The tutorials of Meta's TLX, as the wheel of its Triton (``fbtriton``) has them: small products.

Each enters the GPU that is emulated, with a configuration of its own list made smaller, so that
nothing is tuned.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

_GEMM = {"GROUP_SIZE_M": 8, "USE_WARP_BARRIER": False, "NUM_CTAS": 1}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "hopper_gemm_pipelined": {
        "BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 8,
        "NUM_STAGES": 3,
    },
    "blackwell_gemm_pipelined": {
        "BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 8,
        "NUM_STAGES": 2,
    },
    "hopper_gemm_ws": {
        **_GEMM, "BM": 128, "BN": 128, "BK": 64, "NUM_STAGES": 3, "NUM_MMA_WARPS": 8,
        "NUM_MMA_GROUPS": 2, "EPILOGUE_SUBTILE": False,
    },
    "blackwell_gemm_ws": {
        **_GEMM, "BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64,
        "NUM_SMEM_BUFFERS": 2, "NUM_TMEM_BUFFERS": 2, "NUM_MMA_GROUPS": 1, "EPILOGUE_SUBTILE": 1,
        "SPLIT_K": 1, "INTERLEAVE_EPILOGUE": 0,
    },
    "blackwell_gemm_2cta": {},
    "hopper_fa_ws": {
        "BLOCK_M": 128, "BLOCK_N": 64, "NUM_BUFFERS": 2, "NUM_MMA_WARPS": 8, "NUM_MMA_GROUPS": 2,
    },
    "blackwell_fa_ws": {
        "BLOCK_M": 256, "BLOCK_N": 64, "NUM_BUFFERS_KV": 3, "NUM_BUFFERS_QK": 1,
        "NUM_MMA_GROUPS": 2,
    },
}  # fmt: skip


def _tutorial(name: str) -> Any:
    return importlib.import_module(f"triton.language.extra.tlx.tutorials.{name}")


def product(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A x B of a tutorial, and what is right."""
    rows = 256 if name.endswith("pipelined") else 512
    a, b = torch.randn(rows, 256).half(), torch.randn(256, 256).half()
    if name == "hopper_gemm_ws":  # fewer columns take another way
        b = torch.randn(256, 512).half()
    found = _tutorial(name).matmul(a, b, CONFIGURATIONS[name])
    return found, a.float() @ b.float()


def attention(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of a tutorial, and what is right."""
    q, k, v = (torch.randn(1, 1, 256, 64).half() for _ in range(3))
    found = _tutorial(name).attention(q, k, v, 64**-0.5, CONFIGURATIONS[name])
    heads = (each.float() for each in (q, k, v))
    return found, torch.nn.functional.scaled_dot_product_attention(*heads)
