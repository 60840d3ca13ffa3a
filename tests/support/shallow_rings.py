"""Kernels with two tiles in flight, where the cost model fills shared memory: what Triton 3.9 takes
for a kernel grows with the bytes that it allocates. `tests/kernels` has deeper rings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from triton_ext.kernels.choice.choose import choose_config
from triton_ext.ops import planning


def _shallow(*problem, **options):
    return dataclasses.replace(choose_config(*problem, **options), stages=2)


@contextmanager
def two_stages() -> Iterator[None]:
    """Products choose as ever, but for the number of stages."""
    with mock.patch.object(planning, "choose_config", _shallow):
        yield
