"""What programs ask about the GPU, about kernels and about pools of memory, by CUDA's numbers."""

from __future__ import annotations

from triton_ext.emulator.decode.program import Program
from triton_ext.emulator.host.cuda.heap import SIZE
from triton_ext.emulator.host.run import MAX_BLOCK, MAX_GRID, MAX_THREADS
from triton_ext.hardware.architecture import CAPABILITIES, RESERVED_SHARED_MEMORY, WARP_THREADS

VERSION = 13000
"""The release of CUDA whose functions are there: 13.0."""
PLAIN_SHARED_MEMORY = 48 << 10
"""Bytes that a block gets unasked (CUDA C++ Programming Guide, "Shared Memory")."""
BLOCKS_PER_SM = 32
"""The same guide, "Technical Specifications per Compute Capability"."""
_REGISTERS = 65536
_KILOHERTZ = 1_000_000
"""A clock for programs that print it: there is no time."""
_MOST_DEVICE, _MOST_FUNCTION = 147, 15
"""The last of ``CUdevice_attribute`` and of ``CUfunction_attribute`` in CUDA 13.0."""


def device_attribute(number: int, arch: int) -> int | None:
    """A ``CUdevice_attribute``; 0 for what the GPU does not have, None for no attribute."""
    if not 1 <= number <= _MOST_DEVICE:
        return None
    gpu = CAPABILITIES[arch]
    return {
        1: MAX_THREADS, 2: MAX_BLOCK[0], 3: MAX_BLOCK[1], 4: MAX_BLOCK[2], 5: MAX_GRID[0],
        6: MAX_GRID[1], 7: MAX_GRID[2], 8: PLAIN_SHARED_MEMORY, 9: 64 << 10, 10: WARP_THREADS,
        11: (1 << 31) - 1, 12: _REGISTERS, 13: _KILOHERTZ, 14: 512, 15: 1,
        16: gpu.multiprocessors, 19: 1, 30: 512, 31: 1, 36: _KILOHERTZ, 37: 5120, 38: 50 << 20,
        39: gpu.threads_per_sm, 40: 1, 41: 1, 51: 32, 75: arch // 10, 76: arch % 10, 78: 1, 79: 1,
        80: 1, 81: gpu.shared_memory_per_sm, 82: _REGISTERS, 83: 1, 87: 2, 89: 1, 90: 1, 91: 1,
        92: 1, 93: 1, 95: 1, 97: gpu.shared_memory_per_block, 99: 1, 102: 1, 106: BLOCKS_PER_SM,
        111: RESERVED_SHARED_MEMORY, 115: 1, 120: int(arch >= 90), 122: 1, 127: int(arch >= 90),
        130: 0, 131: 0,
    }.get(number, 0)  # fmt: skip


def function_attribute(number: int, program: Program, given: dict[int, int]) -> int | None:
    """A ``CUfunction_attribute``, of those that were given or else of the kernel itself."""
    if not 0 <= number <= _MOST_FUNCTION:
        return None
    directives, storage = program.kernel.directives, program.storage
    threads = MAX_THREADS
    for name in ("maxntid", "reqntid"):
        if directives.get(name):
            threads = 1
            for each in directives[name]:
                threads *= each
    cluster = (*directives.get("reqnctapercluster", ()), 0, 0, 0)[:3]
    own = {
        0: threads, 1: storage.static_smem_bytes, 3: storage.local_bytes, 4: WARP_THREADS,
        5: program.arch, 6: program.arch, 8: PLAIN_SHARED_MEMORY - storage.static_smem_bytes,
        9: -1, 10: int(any(cluster)), 11: cluster[0], 12: cluster[1], 13: cluster[2],
    }  # fmt: skip
    return given.get(number, own.get(number, 0))


def pool_attribute(number: int, used: int) -> bytes:
    """A ``CUmemPool_attribute``: the first three are of 4 bytes, the others of 8."""
    if number <= 3:
        return (1).to_bytes(4, "little")
    value = {4: SIZE, 5: used, 6: used, 7: used, 8: used}.get(number, 0)
    return value.to_bytes(8, "little")


def resident_blocks(program: Program, threads: int, dynamic: int) -> int:
    """How many blocks of a kernel a multiprocessor has room for. (How many registers a thread would
    have is not known.)"""
    if threads < 1 or threads > MAX_THREADS:
        return 0
    shared = program.storage.static_smem_bytes + dynamic + RESERVED_SHARED_MEMORY
    whole = -(-threads // WARP_THREADS) * WARP_THREADS
    gpu = CAPABILITIES[program.arch]
    return min(gpu.threads_per_sm // whole, BLOCKS_PER_SM, gpu.shared_memory_per_sm // shared)
