"""The configurations of the matmul kernels that several test files use, and their compilation."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

from corpus_cache import kept, sources
from covers import cover
from sites import ALL, SUPPORT

from triton_ext.kernels.right_operand import edge_columns, right_columns
from triton_ext.kernels.spec import kernel_spec

MAJORS = list(itertools.product(("K", "MN"), repeat=2))
ARCHES = [90, 100]
STAGES = {} if ALL else {"stages": 2}
"""Of configurations that leave it open."""


def is_in_turn(number, config, arch, site):
    """Whether a release compiles a configuration in `make test`: the installed one each pair of
    major-nesses, and every other of the rest, of which those that both GPUs have are in turn for
    one of them; the other releases every third, and what only some of them can do.
    """
    if site:
        return number % 3 == 0 or config["element_type"] == "int8"
    return number < len(MAJORS) or number % 2 == (arch == 100)


def compiled_configurations(arch, site):
    """The configurations, and for each what becomes of it at `site`: compared, and by the installed
    release with its resources, as ptxas takes most of the time.

    Those of `is_in_turn`, and with two stages where their number is left open; those with consumers
    with their resources, of which about half are compared. By `make oracle` all, with the default,
    and with both.
    """
    jobs = []
    for number, config in enumerate(configurations(arch)):
        if not ALL and not is_in_turn(number, config, arch, site):
            continue
        has_consumers = "consumers" in config
        jobs.append(
            {
                "config": {"arch": arch, **STAGES, **config},
                "compared": ALL or not has_consumers or number % 4 < 2,
                "resources": ALL or (not site and has_consumers),
            }
        )
    _, results = kept(
        [sys.executable, str(site), jobs], lambda: (compile_jobs(site, jobs), sources(site))
    )
    return [(job["config"], result) for job, result in zip(jobs, results, strict=True)]


def compile_jobs(site, jobs):
    """The version of Triton at `site`, and what became of each job."""
    environment = dict(os.environ)
    if site:
        environment["PYTHONPATH"] = str(site)
    finished = subprocess.run(
        [sys.executable, str(SUPPORT / "compile_worker.py")],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        env=environment,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    version, *results = (json.loads(line) for line in finished.stdout.splitlines())
    assert len(results) == len(jobs)
    return tuple(map(int, version.split(".")[:2])), results


def configurations(arch):
    """Tiles, types, major-nesses and swizzles; each of the kernel's parameters at each value.

    Where a tile's size and the number of stages are not the point they are small: what Triton 3.9
    takes for a kernel grows with the bytes of shared memory of all blocks of the cluster.
    """
    for (a_major, b_major), element_type in zip(MAJORS, ["fp16", "bf16"] * 2, strict=True):
        yield {
            "element_type": element_type,
            "a_major": a_major,
            "b_major": b_major,
            "block_n": 64,
            "stages": 2,
        }
    for a_major, b_major in (("K", "K"), ("MN", "MN")):
        for swizzle in (32, 64, 128):
            yield {
                "element_type": "fp16",
                "a_major": a_major,
                "b_major": b_major,
                "a_swizzle": swizzle,
                "b_swizzle": swizzle,
                "block_n": 64,
                "stages": 2,
            }
    yield {"element_type": "bf16", "a_swizzle": 32, "b_swizzle": 128, "b_major": "MN", "stages": 2}
    yield {"element_type": "bf16", "block_n": 256, "num_warps": 8, "stages": 4}
    yield {"element_type": "fp16", "block_n": 256, "num_warps": 8, "b_major": "MN"}
    yield {"element_type": "fp16", "block_n": 64, "block_k": 128, "stages": 4}
    yield {"element_type": "fp16", "block_n": 16, "block_k": 32, "stages": 8}
    yield {"element_type": "bf16", "block_n": 32, "block_k": 16, "stages": 2, "b_major": "MN"}
    if arch == 90:
        yield {"element_type": "fp16", "block_m": 64, "block_n": 64}
        yield {"element_type": "bf16", "block_m": 64, "block_n": 256, "a_major": "MN"}
        yield {"element_type": "bf16", "consumers": 2, "block_n": 256, "c_parts": 2, "stages": 4,
               "b_major": "MN", "split_k": 4}  # fmt: skip
        yield {
            "element_type": "fp16",
            "consumers": 3,
            "block_m": 64,
            "block_n": 192,
            "swap_ab": True,
        }
        yield {
            "element_type": "bf16",
            "consumers": 2,
            "a_major": "MN",
            "cluster_m": 2,
            "block_n": 64,
        }
        yield {"element_type": "bf16", "consumers": 1, "block_m": 64, "block_n": 64, "cluster_m": 2,
               "cluster_n": 2, "stages": 2}  # fmt: skip
        yield {"element_type": "bf16", "consumers": 1, "block_m": 64, "block_n": 72, "c_parts": 9,
               "cluster_n": 4, "a_major": "MN", "stages": 2}  # fmt: skip
        yield {"element_type": "e4m3", "consumers": 1, "block_m": 64, "block_k": 128, "bias": True,
               "out_type": "bf16", "a_scales": "each", "activation": "gelu"}  # fmt: skip
        yield {"element_type": "fp16", "consumers": 2, "pingpong": True, "block_n": 192,
               "block_m": 64, "c_parts": 3, "b_major": "MN"}  # fmt: skip
        yield {"element_type": "bf16", "consumers": 2, "block_n": 256, "c_parts": 2,
               "residual": True, "bias": True}  # fmt: skip
        yield {"element_type": "bf16", "consumers": 2, "cluster_m": 2, "b_major": "MN", "stages": 2,
               "block_n": 64, "batched": True, "residual": True, "activation": "relu"}  # fmt: skip
        yield {"element_type": "bf16", "consumers": 2, "cluster_k": 2, "a_major": "MN",
               "block_n": 64, "stages": 2}  # fmt: skip
        yield {"element_type": "bf16", "consumers": 2, "block_n": 176, "c_parts": 11, "stages": 2}
        yield {"element_type": "fp16", "consumers": 1, "block_m": 64, "block_n": 192, "c_parts": 3,
               "b_major": "MN", "loaded_rows": 24, "stages": 2}  # fmt: skip
        yield {"element_type": "bf16", "consumers": 2, "pingpong": True, "block_m": 64,
               "c_parts": 2, "gated": True, "batched": True, "activation": "silu"}  # fmt: skip
        yield {"element_type": "bf16", "consumers": 2, "b_major": "MN", "c_parts": 4, "gated": True,
               "interleaved": True, "bias": True, "activation": "clamped_silu"}  # fmt: skip
        return
    several = {"consumers": 1, "block_n": 64, "stages": 2}
    yield several | {"element_type": "bf16", "b_major": "MN", "split_k": 4, "residual": True}
    yield several | {"element_type": "fp16", "swap_ab": True, "block_n": 128, "block_m": 16,
                     "a_major": "MN", "batched": True}  # fmt: skip
    yield several | {"element_type": "e4m3", "block_k": 128, "bias": True, "out_type": "bf16",
                     "a_scales": "each", "activation": "gelu"}  # fmt: skip
    yield several | {"element_type": "int8", "block_m": 64, "block_k": 128}
    yield several | {"element_type": "tf32", "block_k": 32, "cluster_m": 2}
    yield {"element_type": "bf16", "consumers": 1, "block_n": 256, "stages": 3, "cluster_m": 2,
           "cta_group": 2, "c_parts": 4, "c_buffers": 2}  # fmt: skip
    yield several | {"element_type": "fp16", "cluster_m": 4, "cta_group": 2, "b_major": "MN"}
    yield several | {"element_type": "nvfp4", "block_k": 128, "block_n": 256, "c_parts": 4,
                     "cluster_m": 2, "cta_group": 2, "out_type": "e4m3", "bias": True}  # fmt: skip
    yield several | {"element_type": "bf16", "c_parts": 2, "cluster_launch_control": True}
    yield several | {"element_type": "bf16", "cluster_m": 2, "cta_group": 2, "c_parts": 4,
                     "gated": True, "batched": True, "activation": "gelu"}  # fmt: skip
    yield several | {"element_type": "bf16", "b_major": "MN", "c_parts": 2, "gated": True,
                     "interleaved": True, "bias": True, "activation": "clamped_silu"}  # fmt: skip


# A configuration, M, N, K, and how many SMs there are: so many blocks stay. Tiles are small where
# their size is not the point, as in `configurations`.
EMULATED = [
    ({"block_n": 256, "stages": 4, "c_parts": 2, "consumers": 2}, 200, 520, 200, 3),
    ({"block_m": 256, "c_parts": 2, "c_buffers": 2, "consumers": 2, "a_major": "MN"},
     304, 264, 136, 2),
    ({"block_m": 64, "block_k": 128, "consumers": 1, "b_major": "MN"}, 304, 264, 200, 3),
    ({"block_m": 64, "block_n": 192, "consumers": 3, "swap_ab": True}, 136, 400, 200, 2),
    ({"block_m": 8, "block_n": 64, "block_k": 128, "consumers": 1, "swap_ab": True}, 1, 264, 520,
      3),
    # the last wave cut along K: 6 tiles in 2 parts, 5 in 4; and 2 in 3 after a whole wave
    ({"block_n": 128, "c_parts": 2, "consumers": 2, "split_k": 4}, 200, 264, 520, 13),
    ({"block_m": 16, "block_n": 64, "consumers": 1, "swap_ab": True, "split_k": 8},
     13, 264, 1000, 21),
    ({"block_m": 64, "block_n": 64, "consumers": 1, "split_k": 3}, 172, 136, 776, 7),
    # cut end to end: 5 tiles among 8 blocks, 5 among 7 after a whole wave, in turn
    ({"block_m": 16, "block_n": 64, "consumers": 1, "swap_ab": True, "split_k": 8},
     13, 264, 1000, 8),
    ({"block_m": 64, "block_n": 64, "consumers": 1, "split_k": 4}, 40, 712, 520, 7),
    ({"block_m": 64, "block_n": 64, "consumers": 2, "pingpong": True, "split_k": 8},
     40, 264, 1000, 8),
    # the tiles of clusters in parts: 3 in 2; 2 in 4, of two columns of blocks; 3 end to end; 4 in 2
    # after a whole wave, in turn; and of several pieces, to be added to others
    ({"consumers": 2, "cluster_m": 2, "block_n": 64, "stages": 2, "split_k": 4}, 200, 136, 520,
     13),
    ({"block_m": 64, "block_n": 48, "c_parts": 3, "consumers": 1, "cluster_m": 2,
      "cluster_n": 2, "stages": 2, "split_k": 4, "bias": True}, 104, 152, 1000, 33),
    ({"block_m": 16, "block_n": 64, "consumers": 1, "cluster_m": 2, "swap_ab": True, "split_k": 8,
      "stages": 2}, 13, 328, 1000, 11),
    ({"block_m": 64, "block_n": 64, "consumers": 2, "pingpong": True, "cluster_m": 2,
      "b_major": "MN", "stages": 2, "split_k": 2}, 264, 264, 600, 17),
    ({"block_m": 80, "block_n": 64, "c_parts": 5, "c_buffers": 2, "consumers": 1, "cluster_m": 4,
      "swap_ab": True, "a_major": "MN", "stages": 2, "split_k": 3, "residual": True}, 72, 264, 1000,
     33),
    # clusters
    ({"consumers": 2, "cluster_m": 2, "a_major": "MN", "b_major": "MN", "block_n": 64}, 304, 136,
      200,
     4),
    ({"block_m": 64, "block_n": 192, "consumers": 3, "cluster_m": 2, "swap_ab": True}, 72, 520,
      200, 4),
    ({"block_m": 64, "block_n": 64, "consumers": 1, "cluster_m": 4, "a_major": "MN"}, 304, 136, 328,
     8),
    # clusters of two columns of blocks: units, swapped, in turn over several tiles
    ({"block_m": 64, "block_n": 48, "c_parts": 3, "consumers": 1, "cluster_m": 2,
      "cluster_n": 2, "stages": 2}, 200, 200, 200, 8),
    ({"block_m": 80, "block_n": 64, "c_parts": 5, "c_buffers": 2, "consumers": 1, "cluster_m": 4,
      "cluster_n": 2, "swap_ab": True, "a_major": "MN", "stages": 2}, 168, 328, 200, 132),
    ({"block_m": 64, "block_n": 64, "c_parts": 4, "consumers": 2, "pingpong": True, "cluster_m": 2,
      "cluster_n": 2, "b_major": "MN", "stages": 2}, 136, 264, 264, 4),
    # clusters of one row of blocks, which share the left operand alone: odd widths, MN-major,
    # swapped, over several tiles; parts; two rows of four
    ({"block_m": 64, "block_n": 72, "c_parts": 9, "c_buffers": 8, "consumers": 1,
      "cluster_n": 4, "a_major": "MN", "stages": 3}, 40, 664, 200, 8),
    ({"block_m": 64, "block_n": 48, "c_parts": 3, "consumers": 1, "cluster_n": 2,
      "bias": True, "stages": 2}, 136, 280, 200, 4),
    ({"block_m": 64, "block_n": 64, "c_parts": 2, "consumers": 1, "cluster_n": 4,
      "swap_ab": True, "b_major": "MN", "a_major": "MN", "stages": 2}, 520, 56, 264, 8),
    ({"block_m": 64, "block_n": 40, "c_parts": 5, "c_buffers": 2, "consumers": 1,
      "cluster_n": 4, "a_major": "MN", "split_k": 8, "stages": 2}, 24, 328, 1000, 13),
    ({"block_n": 56, "c_parts": 7, "consumers": 2, "cluster_m": 2, "cluster_n": 4,
      "residual": True, "stages": 2}, 264, 392, 136, 16),
    # boxes of units, of parts and panels; cut where they are few
    ({"block_m": 64, "block_n": 48, "c_parts": 3, "consumers": 1, "cluster_m": 4,
      "stages": 2}, 304, 136, 264, 8),
    ({"block_m": 96, "c_parts": 6, "consumers": 2, "cluster_m": 2, "cluster_n": 2,
      "swap_ab": True, "a_major": "MN", "b_major": "MN", "stages": 2}, 200, 280, 200,
     8),
    ({"block_m": 64, "block_n": 32, "block_k": 128, "consumers": 2, "pingpong": True,
      "cluster_m": 4,
      "cluster_n": 2, "batched": True, "stages": 2}, 280, 136, 264, 8),
    # a residual whose pieces all have buffers, of several tiles of a block
    ({"block_n": 96, "c_parts": 3, "c_buffers": 3, "consumers": 2, "residual": True}, 264, 200, 136,
     2),
    # fp32 accumulation of fp8: one instruction of one tensor, of units, of 2 x 64 rows; in
    # turn; in clusters; in parts; K among blocks; with few rows
    ({"element_type": "e4m3", "block_k": 128, "consumers": 2, "stages": 2,
      "fp32_accumulation": True}, 200,
     264, 1032, 3),
    ({"element_type": "e5m2", "block_m": 112, "c_parts": 7, "block_k": 128, "consumers": 2,
      "cluster_m": 2, "cluster_n": 2, "swap_ab": True, "fp32_accumulation": True,
      "out_type": "bf16",
      "a_scales": "each", "bias": True, "stages": 2}, 264, 280, 400, 8),
    ({"element_type": "e4m3", "block_m": 256, "block_n": 96, "c_parts": 3, "block_k": 64,
      "consumers": 2, "split_k": 3, "fp32_accumulation": True, "stages": 2}, 264, 200, 912, 13),
    ({"element_type": "e4m3", "block_m": 64, "block_n": 64, "block_k": 128, "consumers": 2,
      "pingpong": True, "fp32_accumulation": True, "batched": True, "stages": 3}, 136, 136, 656, 4),
    ({"element_type": "e4m3", "block_n": 64, "block_k": 128, "consumers": 2, "cluster_k": 2,
      "c_parts": 2, "fp32_accumulation": True, "stages": 2}, 136, 136, 1040, 8),
    ({"element_type": "e4m3", "block_m": 64, "block_n": 48, "c_parts": 3, "block_k": 128,
      "consumers": 1, "loaded_rows": 16, "fp32_accumulation": True, "stages": 3}, 9, 200, 912, 4),
    # A and B of different types of fp8: as they are, and swapped; in lines of two swizzles
    ({"element_type": "e5m2_e4m3", "block_k": 128, "consumers": 2, "block_n": 96, "c_parts": 3,
      "out_type": "bf16"}, 136, 104, 400, 3),
    ({"element_type": "e4m3_e5m2", "block_m": 32, "block_n": 64, "block_k": 256, "consumers": 1,
      "swap_ab": True, "split_k": 3}, 24, 136, 1040, 5),
    ({"element_type": "e5m2_e4m3", "block_m": 64, "block_n": 64, "block_k": 128, "consumers": 1,
      "loaded_rows": 24, "fp32_accumulation": True}, 20, 72, 656, 3),
    # two consumers in turn, the ring going round more than twice in a tile; the last tile in parts
    ({"block_m": 64, "block_n": 64, "consumers": 2, "pingpong": True}, 200, 264, 600, 3),
    ({"consumers": 2, "pingpong": True, "block_m": 64, "stages": 6, "c_parts": 2, "split_k": 3,
      "swap_ab": True}, 72, 520, 1104, 13),
    ({"block_m": 64, "block_n": 64, "consumers": 2, "pingpong": True, "cluster_m": 2,
      "b_major": "MN"}, 264, 136, 600, 4),
    # widths that are no powers of two, of one instruction: units of K-major and of
    # MN-major operands, of one consumer's rows twice, of several tiles along K, in a cluster, in
    # turn, in parts; every type
    ({"block_n": 144, "stages": 4, "c_parts": 9, "consumers": 2}, 200, 312, 200, 3),
    ({"block_m": 256, "block_n": 96, "c_parts": 6, "c_buffers": 2, "consumers": 2, "a_major": "MN"},
     264, 200, 136, 3),
    ({"block_m": 128, "block_n": 40, "block_k": 128, "c_parts": 5, "consumers": 1},
     136, 96, 328, 2),
    ({"block_m": 64, "block_n": 192, "block_k": 128, "stages": 2, "c_parts": 3, "consumers": 1,
      "b_major": "MN"}, 72, 400, 328, 2),
    ({"block_n": 160, "c_parts": 5, "consumers": 2, "b_major": "MN", "cluster_m": 2},
     264, 328, 200, 4),
    ({"block_n": 64, "block_m": 208, "c_parts": 13, "consumers": 2, "swap_ab": True,
      "pingpong": True,
      "stages": 4}, 424, 200, 328, 3),
    # as many sums as a thread has registers for
    ({"block_m": 256, "block_n": 208, "c_parts": 13, "consumers": 2, "stages": 3},
     300, 264, 200, 3),
    ({"block_m": 192, "block_n": 256, "c_parts": 3, "consumers": 2, "swap_ab": True, "stages": 2,
      "a_major": "MN", "cluster_m": 2, "split_k": 2}, 248, 520, 712, 4),
    # of the last unit of an MN-major operand, the instruction reads a part: of one unit, of two in
    # clusters that share both tiles, swapped and in parts, of a narrow swizzle
    ({"block_m": 64, "block_n": 24, "c_parts": 3, "consumers": 1, "b_major": "MN"}, 72, 64, 136, 3),
    ({"block_m": 64, "block_n": 88, "c_parts": 11, "consumers": 1, "b_major": "MN", "cluster_m": 4},
     264, 184, 136, 4),
    ({"block_n": 72, "c_parts": 9, "consumers": 2, "b_major": "MN", "cluster_m": 2,
      "cluster_n": 2}, 264, 312, 200, 8),
    ({"block_n": 64, "block_m": 208, "c_parts": 13, "consumers": 1, "swap_ab": True,
      "a_major": "MN",
      "stages": 4, "split_k": 4, "cluster_n": 2}, 424, 200, 1040, 8),
    ({"block_n": 80, "b_swizzle": 64, "c_parts": 5, "consumers": 2, "b_major": "MN",
      "cluster_k": 2}, 136, 136, 328, 6),
    ({"block_n": 192, "block_m": 112, "c_parts": 7, "consumers": 3, "swap_ab": True, "cluster_m": 2,
      "batched": True}, 120, 400, 136, 4),
    ({"block_n": 64, "block_m": 88, "block_k": 128, "c_parts": 11, "consumers": 1, "swap_ab": True,
      "split_k": 4, "residual": True}, 80, 136, 1040, 8),
    ({"block_n": 48, "c_parts": 3, "consumers": 2, "cluster_k": 2, "bias": True}, 136, 136, 328, 6),
    ({"element_type": "e4m3", "block_n": 176, "block_k": 256, "stages": 2, "c_parts": 11,
      "consumers": 1, "block_m": 64, "out_type": "bf16", "a_scales": "each"}, 72, 192, 528, 3),
    ({"element_type": "int8", "block_n": 240, "block_k": 128, "c_parts": 15, "consumers": 1,
      "block_m": 64}, 72, 256, 208, 3),
    ({"element_type": "tf32", "block_n": 72, "block_k": 32, "c_parts": 9, "consumers": 2}, 136, 88,
     100, 3),
    ({"element_type": "fp16", "block_n": 24, "b_swizzle": 64, "c_parts": 3, "consumers": 1,
      "block_m": 64}, 72, 40, 136, 3),
    # a block's last tile leaves through the pipeline: of rows that consumers divide; of one
    # consumer in clusters; in turn, with a long and a short K; of three; of few rows;
    # of fp32 accumulation; of 8 bits
    ({"block_n": 72, "c_parts": 9, "consumers": 2, "last_through_pipeline": True}, 264, 232, 136,
      2),
    ({"block_m": 64, "block_n": 88, "c_parts": 11, "c_buffers": 3, "consumers": 1, "cluster_m": 2,
      "cluster_n": 2, "b_major": "MN", "bias": True, "activation": "gelu",
      "last_through_pipeline": True}, 136, 360, 136, 4),
    ({"block_m": 64, "block_n": 56, "c_parts": 7, "consumers": 2, "pingpong": True,
      "last_through_pipeline": True}, 136, 168, 200, 2),
    ({"block_m": 64, "block_n": 56, "c_parts": 7, "consumers": 2, "pingpong": True, "stages": 4,
      "batched": True, "last_through_pipeline": True}, 72, 56, 64, 3),
    ({"block_m": 192, "block_n": 40, "c_parts": 5, "consumers": 3, "a_major": "MN",
      "last_through_pipeline": True}, 200, 88, 136, 3),
    ({"block_m": 64, "block_n": 40, "block_k": 128, "c_parts": 5, "consumers": 1, "loaded_rows": 8,
      "last_through_pipeline": True}, 3, 232, 264, 3),
    ({"element_type": "e4m3", "block_m": 64, "block_n": 40, "block_k": 128, "c_parts": 5,
      "consumers": 1, "out_type": "bf16", "fp32_accumulation": True,
      "last_through_pipeline": True}, 72, 96, 272,
     3),
    ({"element_type": "e4m3", "block_m": 64, "block_n": 80, "block_k": 128, "c_parts": 5,
      "consumers": 1, "out_type": "e4m3", "a_scales": "each", "b_scales": "one",
      "last_through_pipeline": True}, 72, 176, 272, 3),
    # no more rows of the left operand copied than there are
    ({"block_m": 64, "block_n": 40, "block_k": 128, "c_parts": 5, "consumers": 1, "loaded_rows": 8},
     3, 232, 520, 3),
    ({"block_m": 64, "block_n": 64, "consumers": 1, "loaded_rows": 24, "b_major": "MN",
      "split_k": 4}, 23, 264, 520, 7),
    ({"block_m": 80, "block_n": 64, "consumers": 1, "loaded_rows": 56, "swap_ab": True,
      "c_parts": 5,
      "batched": True, "residual": True}, 136, 56, 200, 3),
    ({"element_type": "e4m3", "block_m": 64, "block_n": 48, "block_k": 256, "stages": 4,
      "c_parts": 3, "consumers": 1, "loaded_rows": 16, "out_type": "bf16"}, 10, 208, 528, 3),
    # blocks of a cluster divide K: K not a multiple of what they take; few columns; four blocks
    ({"consumers": 2, "cluster_k": 2, "b_major": "MN", "bias": True, "block_n": 64}, 200, 136, 328,
     6),
    ({"consumers": 1, "block_m": 16, "block_n": 64, "swap_ab": True, "cluster_k": 2,
      "activation": "relu"}, 13, 136, 520, 6),
    ({"consumers": 1, "block_m": 64, "block_n": 64, "cluster_k": 4, "b_major": "MN"}, 40, 136, 776,
     12),
    ({"element_type": "e4m3", "block_k": 128, "consumers": 2, "cluster_k": 4, "out_type": "bf16",
      "a_scales": "each", "b_scales": "one", "block_n": 64, "stages": 2}, 136, 80, 1168, 8),
    ({"element_type": "tf32", "block_k": 32, "consumers": 2, "cluster_k": 2, "block_n": 64}, 136,
      80,
     100, 6),
    # types, and what follows the product
    ({"element_type": "e4m3", "block_k": 128, "block_n": 256, "c_parts": 2, "consumers": 2,
      "out_type": "bf16", "a_scales": "one", "b_scales": "one"}, 200, 272, 208, 3),
    ({"element_type": "e5m2", "block_m": 64, "block_k": 128, "consumers": 1, "out_type": "fp16",
      "a_scales": "each", "b_scales": "each"}, 72, 144, 208, 3),
    ({"element_type": "tf32", "block_k": 32, "consumers": 2}, 136, 144, 100, 3),
    ({"element_type": "int8", "block_k": 128, "consumers": 2}, 136, 144, 208, 3),
    ({"element_type": "int8", "block_k": 128, "block_m": 64, "consumers": 1, "b_scales": "each",
      "bias": True, "out_type": "fp32", "split_k": 4}, 40, 136, 1104, 9),
    ({"block_m": 16, "block_n": 64, "consumers": 1, "swap_ab": True, "bias": True, "alpha": True,
      "activation": "gelu", "out_type": "fp32", "split_k": 4}, 13, 136, 520, 11),
    ({"block_m": 64, "consumers": 1, "activation": "relu", "bias": True}, 72, 136, 136, 3),
    ({"consumers": 2, "cluster_m": 2, "activation": "silu", "a_scales": "each", "bias": True,
      "block_n": 64}, 264, 72, 136, 4),
    ({"element_type": "e5m2", "block_m": 64, "block_n": 64, "block_k": 128, "consumers": 1,
      "out_type": "e5m2", "alpha": True}, 72, 80, 208, 3),
    ({"element_type": "int8", "block_m": 64, "block_n": 64, "block_k": 128, "consumers": 1,
      "out_type": "e4m3"}, 72, 80, 208, 3),
    # several tiles a block, whose pieces are no multiple of the buffers
    ({"block_m": 64, "block_n": 64, "c_parts": 4, "c_buffers": 3, "consumers": 1}, 136, 136, 72, 2),
]  # fmt: skip
# A matrix that is added comes by TMA into the buffers of C: with a buffer for each piece, for half
# of them; a cluster; tiles in parts; swapped.
WITH_RESIDUAL = [
    ({"consumers": 2, "residual": True, "block_n": 256, "c_parts": 2, "activation": "relu"},
     136, 520, 72, 2),
    ({"consumers": 2, "residual": True, "c_parts": 4, "c_buffers": 3, "alpha": True, "block_n": 64},
     136, 136, 72, 2),
    ({"consumers": 2, "residual": True, "cluster_m": 2, "c_parts": 2, "c_buffers": 2,
      "block_n": 64},
     264, 72, 72, 4),
    ({"consumers": 1, "residual": True, "block_m": 64, "block_n": 64, "cluster_m": 2,
      "cluster_n": 2, "c_parts": 2, "bias": True, "stages": 2}, 72, 136, 136, 8),
    ({"consumers": 1, "residual": True, "block_m": 64, "block_n": 64, "split_k": 3,
      "out_type": "fp32"}, 172, 136, 776, 7),
    ({"consumers": 1, "residual": True, "block_m": 16, "block_n": 64, "swap_ab": True, "bias": True,
      "split_k": 4}, 13, 264, 520, 11),
    ({"consumers": 1, "residual": True, "block_m": 64, "block_n": 64, "cluster_k": 2, "c_parts": 2},
     72, 136, 264, 6),
]  # fmt: skip
# Batches of three; which operand is the same for all.
BATCHED = [
    ({"consumers": 2, "block_n": 256, "c_parts": 2}, 200, 264, 136, 3, ""),
    ({"consumers": 2, "cluster_m": 2, "a_major": "MN", "b_major": "MN", "block_n": 64}, 136, 72, 72,
     4, "b"),
    ({"consumers": 1, "block_m": 16, "block_n": 64, "swap_ab": True, "a_major": "MN"}, 24, 136, 72,
     5, "a"),
    ({"consumers": 1, "block_m": 64, "block_n": 64, "split_k": 3, "residual": True,
      "bias": True}, 72, 72, 776, 14, ""),
    ({"consumers": 1, "block_m": 64, "block_n": 64, "block_k": 128, "element_type": "e4m3"}, 72, 72,
     144, 4, ""),
    ({"consumers": 1, "block_m": 64, "block_n": 64, "cluster_k": 2}, 72, 72, 264, 4, "b"),
]  # fmt: skip
BATCHED = [({"batched": True} | fields, *rest) for fields, *rest in BATCHED]


# The same on sm_100.
EMULATED_SM100 = [
    ({"block_n": 128, "c_parts": 4, "c_buffers": 3, "a_major": "MN", "bias": True}, 200, 136, 200,
     2, ""),
    ({"block_m": 64, "block_n": 64, "b_major": "MN"}, 200, 136, 200, 3, ""),
    ({"block_m": 16, "block_n": 128, "swap_ab": True, "split_k": 4, "residual": True,
      "alpha": True}, 13, 264, 520, 13, ""),
    ({"element_type": "e4m3", "block_n": 16, "block_k": 128, "out_type": "fp32", "batched": True,
      "a_scales": "one", "b_scales": "each", "activation": "relu"}, 40, 24, 208, 2, "b"),
    ({"element_type": "int8", "block_n": 64, "c_parts": 2, "block_k": 128,
      "split_k": 2}, 136, 88, 1104, 3, ""),
    ({"element_type": "e4m3_e5m2", "block_n": 32, "c_parts": 2, "block_k": 128}, 136,
     96, 272, 2, ""),
    ({"element_type": "e5m2_e4m3", "block_n": 64, "block_k": 128, "cluster_m": 2, "cta_group": 2,
      "out_type": "bf16"}, 264, 136, 272, 2, ""),
    ({"element_type": "int8", "block_n": 32, "block_k": 128, "out_type": "e4m3"}, 136, 48, 144, 2,
     ""),
    ({"element_type": "tf32", "block_n": 32, "block_k": 32, "cluster_m": 2}, 264, 72, 100, 4, ""),
    ({"block_n": 64, "cluster_m": 2, "cta_group": 2, "residual": True, "c_parts": 2}, 304, 136,
      200, 2,
     ""),
    ({"block_n": 32, "cluster_m": 4, "cta_group": 2, "cluster_launch_control": True,
      "b_major": "MN"}, 530, 72, 136, 4,
     ""),
    ({"block_m": 64, "block_n": 64, "cluster_m": 2, "cta_group": 2}, 136, 136, 136, 2, ""),
    ({"block_n": 32, "cluster_launch_control": True, "batched": True}, 136, 40, 72, 2, ""),
    # scales of blocks; with 256 columns, two tiles of sums share columns of tensor memory
    ({"element_type": "mxfp8", "block_k": 128, "cluster_m": 2, "cta_group": 2}, 264, 136, 400, 2,
      ""),
    ({"element_type": "mxfp8", "block_k": 128, "block_n": 256, "cluster_m": 2, "cta_group": 2,
      "c_parts": 4, "c_buffers": 2, "bias": True}, 264, 1032, 272, 2, ""),
    ({"element_type": "nvfp4", "block_k": 128, "block_n": 256, "c_parts": 8, "residual": True,
      "cluster_launch_control": True}, 264, 520, 400, 2, ""),
    ({"element_type": "nvfp4", "block_m": 256, "swap_ab": True, "c_parts": 4, "split_k": 2,
      "alpha": True}, 136, 136, 528, 5, ""),
    # the tiles of clusters and of pairs in parts
    ({"block_n": 32, "cluster_m": 4, "split_k": 3, "c_parts": 2, "bias": True}, 400, 72, 1000, 29,
     ""),
    ({"block_n": 64, "cluster_m": 2, "cta_group": 2, "split_k": 4, "residual": True,
      "b_major": "MN"}, 264, 136, 520, 13, ""),
    ({"element_type": "mxfp8", "block_k": 128, "cluster_m": 2, "cta_group": 2, "split_k": 2},
     264, 136, 1040, 9, ""),
]  # fmt: skip
EMULATED_SM100 = [
    ({"arch": 100, "consumers": 1} | fields, *rest) for fields, *rest in EMULATED_SM100
]


STRUCTURE = {
    "swap_ab", "pingpong", "cluster_m", "cluster_n", "cluster_k", "split_k", "batched", "residual",
    "loaded_rows", "cluster_launch_control", "cta_group", "fp32_accumulation",
    "last_through_pipeline",
}  # fmt: skip
SIZES = {"block_m", "block_n", "block_k", "stages", "c_parts"}


def spread(cases):
    """Some of the cases, in their order. Between them they have every value of every field but
    sizes, every pair of what shapes the kernel, and each type and order in memory of tiles of
    several units.
    """

    def parts(case):
        fields, *problem = case
        fields = {"arch": 90, "element_type": "bf16"} | fields
        arch, config = fields["arch"], kernel_spec(**fields)
        found = {(arch, name, value) for name, value in fields.items() if name not in SIZES}
        pairs = itertools.combinations(sorted(fields.keys() & STRUCTURE), 2)
        found |= {(arch, *pair) for pair in pairs} | {(arch, problem[-1])}
        product, tile = config.product, config.tile
        if tile.units > 1:
            found.add((arch, "units", product.element_type, product.b_major))
        if right_columns(product, tile) > tile.columns:
            found.add((arch, "edge", edge_columns(product, tile), tile.cluster_m))
        return found

    return cover(cases, parts)
