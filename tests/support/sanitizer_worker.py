"""Runs matmul kernels on a GPU, under NVIDIA's compute-sanitizer: see test_sanitizer.py.

Arguments: names of CASES, or "control". Each prints one JSON line: the name, the shared memory of
the kernel, and where in it Triton keeps its warp-specialization state (null: there is none).
"""

from __future__ import annotations

import json
import re
import sys

CASES = {
    "plain": ({"block_n": 64}, 136, 136, 200),
    "warp-specialized": ({"consumers": 2, "block_n": 128, "c_parts": 2}, 200, 264, 200),
    "one consumer": ({"consumers": 1, "block_m": 64, "block_n": 64}, 72, 136, 200),
    "cluster": ({"consumers": 2, "cluster_m": 2}, 264, 136, 136),
    "split-K": ({"consumers": 1, "block_m": 64, "block_n": 64, "split_k": 4}, 72, 136, 1096),
    "ping-pong": (
        {"consumers": 2, "pingpong": True, "block_m": 64, "block_n": 64}, 200, 264, 600
    ),
    "units": ({"consumers": 2, "block_n": 192, "c_parts": 3, "stages": 2}, 136, 264, 264),
    "bias": (
        {"consumers": 2, "bias": True, "alpha": True, "activation": "gelu", "a_scales": "each"},
        136, 136, 136,
    ),
    "residual": ({"consumers": 2, "c_parts": 2, "residual": True}, 136, 264, 136),
    "batched": (
        {"consumers": 1, "block_m": 64, "block_n": 64, "batched": True, "residual": True},
        72, 72, 136,
    ),
}  # fmt: skip
"""Fields of a configuration (sm_90, bf16), M, N and K."""

CONTROL_OFFSET = 24
"""Where the control kernel has its race, in bytes from the start of its dynamic shared memory."""
CONTROL = """
extern "C" __global__ void racy(int* out) {
  extern __shared__ volatile int words[];
  words[OFFSET / 4] = threadIdx.x;
  out[threadIdx.x] = words[OFFSET / 4];
}
""".replace("OFFSET", str(CONTROL_OFFSET))


def warp_state(ptx, default_warps, warps):
    """(first byte, end) of the state in dynamic shared memory; None without specialized warps.

    In Triton's lowering of ``gl.warp_specialize``, each worker warp waits at a barrier, and then
    reads the byte at OFFSET + its number, which says what it is to do: the only byte that is read.
    The default warps, which have no such byte, write these before the barrier.
    """
    loads = re.findall(r"ld\.shared\.[bu]8\s+%\w+, \[%r\d+\+(\d+)\]", ptx)
    if warps == default_warps:
        assert not loads
        return None
    (offset,) = map(int, loads)
    return offset + default_warps, offset + warps


def run(name):
    import plan_launch
    import torch

    from triton_ext.kernels.spec import kernel_spec
    from triton_ext.kernels.tile import SimpleTile

    fields, m, n, k = CASES[name]
    config = kernel_spec(90, "bf16", **fields)
    # the reference on the host: the tools would watch torch's kernels, too
    *operands, extras, expected = plan_launch.problem(config, m, n, k)
    a, b = (x.cuda() for x in operands)
    extras = {x: y.cuda() if isinstance(y, torch.Tensor) else y for x, y in extras.items()}
    tile = config.tile
    tiles = -(-m // tile.block_m) * -(-n // tile.block_n)
    if isinstance(tile, SimpleTile):
        processors = 2
    else:
        processors = tiles * 4 if tile.split_k > 1 else 2 * tile.cluster_m
    out, compiled = plan_launch.launch_compiled(config, a, b, extras, processors)
    torch.cuda.synchronize()
    assert plan_launch.relative_error(out.cpu(), expected) < 2.0**-7
    meta = compiled.metadata
    state = warp_state(compiled.asm["ptx"], tile.num_warps, meta.num_warps)
    return {"shared": meta.shared, "state": state}


def control():
    """A kernel with a race: that one is found, and which address is the first."""
    import torch

    kernel = torch.cuda._compile_kernel(CONTROL, "racy")
    out = torch.zeros(64, dtype=torch.int32, device="cuda")
    kernel((1, 1, 1), (64, 1, 1), (out,), shared_mem=1024)
    torch.cuda.synchronize()
    return {"shared": 1024, "state": None}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        found = control() if name == "control" else run(name)
        print(json.dumps({"case": name, **found}), flush=True)
