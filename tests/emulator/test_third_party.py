"""Kernels that this project did not write, on the emulated GPUs, against PyTorch.

They are known good on silicon, so what the emulator makes of them tells on the emulator.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from third_party_kernels import FlashLinearAttentionKernels, LigerKernels  # noqa: E402

ARCHES = ("sm_90", "sm_100")


@pytest.fixture(autouse=True)
def seeded(monkeypatch):
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    torch.manual_seed(0)


@pytest.mark.parametrize("arch", ARCHES)
class TestLiger(LigerKernels):
    """The package liger-kernel."""


@pytest.mark.parametrize("arch", ARCHES)
class TestFlashLinearAttention(FlashLinearAttentionKernels):
    """The package fla-core."""
