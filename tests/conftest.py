"""Settings of hypothesis, and the GPU markers."""

from __future__ import annotations

import functools

import pytest
from hypothesis import settings

# Examples are cheap, the machine is shared: no deadline; the same examples every time.
settings.register_profile("default", deadline=None, derandomize=True)
settings.load_profile("default")


@functools.cache
def gpu_architecture() -> int:
    """90 or 100 if such a GPU is at hand, else 0."""
    try:
        import torch
    except ImportError:
        return 0
    if not torch.cuda.is_available():
        return 0
    major, minor = torch.cuda.get_device_capability()
    return 90 if (major, minor) == (9, 0) else 100 if major == 10 else 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for arch in (90, 100):
            if item.get_closest_marker(f"sm{arch}") and gpu_architecture() != arch:
                item.add_marker(pytest.mark.skip(reason=f"needs an sm_{arch} GPU"))
