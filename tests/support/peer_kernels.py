"""Kernels of several GPUs: flags, pushes, rings. Each takes the mistakes to be made in it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def push_gather(
    mine, peer_flags, own_flags, own, peer, out, rank, epoch, BLOCK: tl.constexpr,
    RELEASE: tl.constexpr, ACQUIRE: tl.constexpr, GIVE: tl.constexpr, TAKE: tl.constexpr,
):  # fmt: skip
    """Of two GPUs: push my part to the peer, raise its flag, wait for mine, and read all."""
    at = tl.program_id(0)
    lanes = at * BLOCK + tl.arange(0, BLOCK)
    size = tl.num_programs(0) * BLOCK
    x = tl.load(mine + lanes)
    tl.store(peer + rank * size + lanes, x)
    tl.store(own + rank * size + lanes, x)
    tl.debug_barrier()
    tl.atomic_add(peer_flags + at, 1, sem=RELEASE, scope=GIVE)
    while tl.atomic_add(own_flags + at, 0, sem=ACQUIRE, scope=TAKE) < epoch:
        pass
    tl.debug_barrier()
    for part in range(2):
        y = tl.load(own + part * size + lanes)
        tl.store(out + part * size + lanes, y)
