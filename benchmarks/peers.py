# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False
# (Triton functions: their arguments are values of the compiler, not of Python.)
"""Triton's own matmul beside ours: the persistent kernel of its tutorials.

Written after Triton's tutorial 09, "Persistent Matmul" (`matmul_kernel_tma_persistent`): TMA
descriptors made on the host; each program computes every PROGRAMS-th tile, in one loop that the
compiler flattens with the loop along K, so that it pipelines across tiles. It is tuned for each
problem over the tutorial's configurations, by device time, which `benchmarks.matmul` measures.

One thing is more general than there: B may be MN-major.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from benchmarks.problems import Operands, Problem
from triton_ext.compat import LAUNCH_OPTIONS, compile_kernel
from triton_ext.hardware.architecture import SHARED_MEMORY_PER_BLOCK
from triton_ext.kernels.launch import TRITON_TYPES

BLOCK_M = 128
"""Rows of the tile, in all of the tutorial's configurations."""
GROUP_M = 8
"""Rows of tiles that run together, likewise."""


@triton.jit
def _position(tile, columns_of_group, tiles_m, GROUP_M: tl.constexpr):
    """Row and column of a tile, in the order of the tutorial: GROUP_M rows of tiles together."""
    first = tile // columns_of_group * GROUP_M
    rows = min(tiles_m - first, GROUP_M)
    return first + tile % rows, tile % columns_of_group // rows


@triton.jit
def persistent_matmul(
    a_desc, b_desc, c_desc, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    B_K_MAJOR: tl.constexpr, HALVES: tl.constexpr, PROGRAMS: tl.constexpr,
    SPECIALIZE: tl.constexpr,
):  # fmt: skip
    """C (m, n) = A (m, k) @ B; B's descriptor is of (n, k) if it is K-major, else of (k, n).

    C is stored in two halves of a tile's columns if HALVES, which takes less shared memory.
    """
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    first = tl.program_id(0)
    columns_of_group = GROUP_M * tiles_n
    # The tile that is stored, counted apart from the one that is loaded: else the store of one tile
    # depends on the loads of the next, and the flattened loop is not pipelined.
    done = first - PROGRAMS
    for tile in tl.range(
        first, tiles_m * tiles_n, PROGRAMS, flatten=True, warp_specialize=SPECIALIZE
    ):
        row, column = _position(tile, columns_of_group, tiles_m, GROUP_M)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for i in range(tl.cdiv(k, BLOCK_K)):
            a = a_desc.load([row * BLOCK_M, i * BLOCK_K])
            if B_K_MAJOR:
                b = b_desc.load([column * BLOCK_N, i * BLOCK_K]).T
            else:
                b = b_desc.load([i * BLOCK_K, column * BLOCK_N])
            acc = tl.dot(a, b, acc)
        done += PROGRAMS
        row, column = _position(done, columns_of_group, tiles_m, GROUP_M)
        if HALVES:
            both = tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
            left, right = tl.split(both)
            c_desc.store([row * BLOCK_M, column * BLOCK_N], left.to(c_desc.dtype))
            c_desc.store([row * BLOCK_M, column * BLOCK_N + BLOCK_N // 2], right.to(c_desc.dtype))
        else:
            c_desc.store([row * BLOCK_M, column * BLOCK_N], acc.to(c_desc.dtype))


@dataclass(frozen=True)
class TutorialConfig:
    """One of the tutorial's configurations."""

    block_n: int
    block_k: int
    stages: int
    warps: int
    halves: bool

    def __str__(self) -> str:
        words = f"{BLOCK_M}x{self.block_n}x{self.block_k}, {self.stages} stages, {self.warps} warps"
        return words + ", C in halves" * self.halves

    def blocks(self, b_k_major: bool) -> tuple[list[int], list[int], list[int]]:
        """The block shapes of the descriptors of A, B and C."""
        b = [self.block_n, self.block_k]
        return (
            [BLOCK_M, self.block_k],
            b if b_k_major else b[::-1],
            [BLOCK_M, self.block_n // 2 if self.halves else self.block_n],
        )

    def constants(self, b_k_major: bool, programs: int) -> dict[str, Any]:
        """The kernel's compile-time arguments.

        Automatic warp specialization is off: on sm_90, Triton 3.9 makes the same PTX of the
        flattened loop with it.
        """
        return {
            "BLOCK_M": BLOCK_M, "BLOCK_N": self.block_n, "BLOCK_K": self.block_k,
            "GROUP_M": GROUP_M, "B_K_MAJOR": b_k_major, "HALVES": self.halves,
            "PROGRAMS": programs, "SPECIALIZE": False,
        }  # fmt: skip


def tutorial_configs() -> list[TutorialConfig]:
    """All 48 of them; some need more shared memory than there is."""
    return list(
        itertools.starmap(
            TutorialConfig,
            itertools.product((128, 256), (64, 128), (2, 3, 4), (4, 8), (True, False)),
        )
    )


@dataclass(frozen=True)
class Compilation:
    """What the kernel is compiled for; problems of all sizes share it."""

    config: TutorialConfig
    element_type: str
    b_k_major: bool
    programs: int

    def compile(self) -> Any:
        """Triton's compiled kernel, for sm_90; needs no GPU. None if a block cannot hold it."""
        constants = self.config.constants(self.b_k_major, self.programs)
        c_type = "bf16" if self.element_type == "e4m3" else self.element_type
        signature = dict.fromkeys(("m", "n", "k"), "i32") | dict.fromkeys(constants, "constexpr")
        for name, block, element in zip(
            ("a_desc", "b_desc", "c_desc"),
            self.config.blocks(self.b_k_major),
            (self.element_type, self.element_type, c_type),
            strict=True,
        ):
            signature[name] = f"tensordesc<{TRITON_TYPES.get(element, element)}{block}>".replace(
                " ", ""
            )
        signature = {name: signature[name] for name in persistent_matmul.arg_names}
        kernel = compile_kernel(
            persistent_matmul, signature, constants, target=90, multiples_of_16=("n", "k"),
            num_warps=self.config.warps, num_stages=self.config.stages,
        )  # fmt: skip
        return kernel if kernel.metadata.shared <= SHARED_MEMORY_PER_BLOCK else None


def tutorial_launches(
    problem: Problem, config: TutorialConfig, kernel: Any, sets: Sequence[Operands], programs: int
) -> Callable[[int], None]:
    """Launches the compiled kernel of a configuration on input set i.

    N and K must be multiples of 16, which is what it is compiled for (and TMA asks for).
    """
    k_major = problem.b_major == "K"
    blocks = config.blocks(k_major)
    tiles = triton.cdiv(problem.m, BLOCK_M) * triton.cdiv(problem.n, config.block_n)
    grid = (min(programs, tiles), 1, 1)
    constants = config.constants(k_major, programs)
    calls = []
    for a, b, c in sets:
        matrices = (a, b.T if k_major else b, c)
        descriptors = [
            TensorDescriptor.from_tensor(matrix, block)
            for matrix, block in zip(matrices, blocks, strict=True)
        ]
        calls.append([*descriptors, problem.m, problem.n, problem.k, *constants.values()])

    def launch(i: int) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        kernel[grid](*calls[i % len(calls)], stream=stream)

    return launch


def tutorial_product(configs: Sequence[TutorialConfig]) -> Callable[..., torch.Tensor]:
    """C = A @ B of row-major matrices, called as the tutorial calls it.

    Descriptors are made for each call, Triton's autotuner looks its configuration up, and Triton
    launches. At the first call for a problem, it tunes.
    """

    def set_blocks(arguments: dict[str, Any]) -> None:
        halves = arguments["BLOCK_N"] // (2 if arguments["HALVES"] else 1)
        arguments["a_desc"].block_shape = [BLOCK_M, arguments["BLOCK_K"]]
        arguments["b_desc"].block_shape = [arguments["BLOCK_K"], arguments["BLOCK_N"]]
        arguments["c_desc"].block_shape = [BLOCK_M, halves]

    choices = [
        triton.Config(
            {"BLOCK_N": c.block_n, "BLOCK_K": c.block_k, "HALVES": c.halves},
            num_stages=c.stages, num_warps=c.warps, pre_hook=set_blocks,
        )
        for c in configs
    ]  # fmt: skip
    tuned = triton.autotune(configs=choices, key=["m", "n", "k"])(persistent_matmul)

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        (m, k), n = a.shape, b.shape[1]
        c = a.new_empty((m, n))
        programs = torch.cuda.get_device_properties().multi_processor_count
        descriptors = [TensorDescriptor.from_tensor(matrix, [1, 1]) for matrix in (a, b, c)]

        def grid(chosen: dict[str, Any]) -> tuple[int]:
            return (min(programs, triton.cdiv(m, BLOCK_M) * triton.cdiv(n, chosen["BLOCK_N"])),)

        tuned[grid](
            *descriptors, m, n, k, BLOCK_M=BLOCK_M, GROUP_M=GROUP_M, B_K_MAJOR=False,
            PROGRAMS=programs, SPECIALIZE=False, **LAUNCH_OPTIONS,
        )  # fmt: skip
        return c

    return product
