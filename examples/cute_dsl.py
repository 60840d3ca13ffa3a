"""PTX of NVIDIA's CuTe DSL, explained and run without the GPU; and a wait that is missing.

    triton-ext run examples/cute_dsl.py                            # right
    triton-ext run examples/cute_dsl.py no-wait                    # broken on purpose
    triton-ext run examples/cute_dsl.py print                      # the PTX, for `triton-ext ptx -`
    triton-ext run examples/cute_dsl.py examples/cute_copy.ptx     # what another machine compiled

Each block copies a 16x32 tile by TMA, and stores it transposed. The same three steps serve any
kernel of the DSL: ``--keep-ptx``, its TMA tensors as `TensorMap`, `run_ptx`. Needs
nvidia-cutlass-dsl, but no GPU.
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from triton_ext.emulator import run_ptx
from triton_ext.hardware.tensor_map import DataType, TensorMap

ARCH, SHAPE, TILE, THREADS = "sm_90a", (64, 96), (16, 32), 128
FAULTS = {"no-wait": "the threads read a tile before its TMA copy has arrived"}
INSTALL = "it is not installed: pip install nvidia-cutlass-dsl; or give a file of PTX"


def compiled(fault: str) -> str:
    """The PTX that the DSL makes of the kernel, on a machine without a GPU."""
    folder = tempfile.TemporaryDirectory()  # --keep-ptx writes a file, too
    os.environ |= {"CUTE_DSL_ARCH": ARCH, "CUTE_DSL_DUMP_DIR": folder.name}
    try:
        import cutlass
        import cutlass.cute as cute
    except ImportError:
        sys.exit(f"this example compiles with NVIDIA's CuTe DSL, and {INSTALL}")
    from cutlass.cute.nvgpu import cpasync
    from cutlass.cute.runtime import make_fake_compact_tensor

    (m, n), (tile_m, tile_n), waits = SHAPE, TILE, fault != "no-wait"

    @cute.kernel
    def transpose(load: cute.CopyAtom, a: cute.Tensor, c: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        row, column, _ = cute.arch.block_idx()
        shared = cutlass.memory.SmemAllocator()
        tile = shared.allocate_tensor(cutlass.Float32, tile_layout(), 128)
        full = shared.allocate_array(cutlass.Int64, 1)
        part = cute.group_modes(cute.local_tile(a, TILE, (row, column)), 0, 2)
        to, source = cpasync.tma_partition(
            load, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), part
        )
        if thread == 0:
            cute.arch.mbarrier_init(full, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        if thread < 32:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full, 4 * tile_m * tile_n)
            cute.copy(load, source, to, tma_bar_ptr=full)
        if cutlass.const_expr(waits):
            cute.arch.mbarrier_wait(full, 0)
        for i in cutlass.range_constexpr(tile_m * tile_n // THREADS):
            at = i * THREADS + thread
            x, y = at % tile_m, at // tile_m
            c[column * tile_n + y, row * tile_m + x] = tile[x, y]

    def tile_layout():
        return cute.make_layout(TILE, stride=(tile_n, 1))

    @cute.jit
    def launch(a: cute.Tensor, c: cute.Tensor):
        load = cpasync.CopyBulkTensorTileG2SOp()
        atom, coordinates = cpasync.make_tiled_tma_atom(load, a, tile_layout(), TILE)
        grid = (m // tile_m, n // tile_n, 1)
        transpose(atom, coordinates, c).launch(grid=grid, block=(THREADS, 1, 1))

    a, c = (
        make_fake_compact_tensor(cutlass.Float32, shape, stride_order=(1, 0), assumed_align=16)
        for shape in (SHAPE, SHAPE[::-1])
    )
    return cute.compile(launch, a, c, options="--keep-ptx --generate-line-info").__ptx__


def run(ptx: str) -> None:
    """On the emulator; raises the fault that it finds."""
    (m, n), tile = SHAPE, TILE
    a = np.arange(m * n, dtype=np.float32).reshape(m, n)
    c = np.zeros((n, m), np.float32)
    address = a.ctypes.data  # numpy aligns what is large to 16 bytes, which TMA needs
    a_map = TensorMap(DataType.FLOAT32, (n, m), (4 * n,), tile[::-1], global_address=address)
    run_ptx(
        ptx, grid=(m // tile[0], n // tile[1]), block=THREADS, args=[a_map, c], buffers=[a],
        dynamic_smem_bytes=4096,
    )  # fmt: skip
    assert (c == a.T).all()
    print("right")


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else ""
    if chosen and chosen not in (*FAULTS, "print") and not chosen.endswith(".ptx"):
        sys.exit(f"there is no fault {chosen!r}, but {', '.join(FAULTS)}")
    ptx = Path(chosen).read_text() if chosen.endswith(".ptx") else compiled(chosen)
    if chosen == "print":
        print(ptx)
    else:
        run(ptx)
