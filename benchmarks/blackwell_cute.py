"""Compiles NVIDIA's persistent GEMMs with the CuTe DSL, on a machine without a GPU.

    python benchmarks/blackwell_cute.py CUTLASS SIZE CLUSTERS    # a checkout of NVIDIA/cutlass

Writes JSON to stdout, for `benchmarks.blackwell_others`: by the name of a type, the PTX for M = N =
K = SIZE (K in bytes), tiles of 256x256 that two CTAs multiply together, C in bf16, and so many
clusters. Imports nothing of this project: the DSL may be installed elsewhere.
"""

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

EXAMPLES = "examples/python/CuTeDSL/cute/blackwell/kernel"
TILE, CLUSTER = (256, 256), (2, 1)


def main(folder: str, size: int, clusters: int) -> None:
    """Compile and print."""
    scratch = tempfile.TemporaryDirectory()  # --keep-ptx writes a file, too
    os.environ |= {"CUTE_DSL_ARCH": "sm_100a", "CUTE_DSL_DUMP_DIR": scratch.name}
    warnings.simplefilter("ignore", DeprecationWarning)
    output, sys.stdout = sys.stdout, sys.stderr  # the DSL may print
    for name in ("dense_gemm", "blockscaled_gemm"):
        sys.path.insert(0, str(Path(folder) / EXAMPLES / name))
    import cutlass
    import cutlass.cute as cute
    import dense_blockscaled_gemm_persistent as scaled
    import dense_gemm_persistent as dense
    from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream, make_ptr

    stream = make_fake_stream()
    c_type, memory = cutlass.BFloat16, cute.AddressSpace.gmem
    a, b, c = (
        make_fake_compact_tensor(c_type, (1, size, size), stride_order=order, assumed_align=16)
        for order in ((2, 1, 0), (2, 0, 1), (2, 1, 0))
    )
    gemm = dense.PersistentDenseGemmKernel(cutlass.Float32, True, TILE, CLUSTER, True)
    found = {"bf16": cute.compile(dense.bmm, gemm, a, b, c, clusters, stream, options="--keep-ptx")}
    layouts = (*[scaled.OperandMajorMode.K] * 2, scaled.utils.LayoutEnum.ROW_MAJOR)

    def block_scaled(element: Any, scale: Any, length: int, k: int) -> Any:
        kernel = scaled.Sm100BlockScaledPersistentDenseGemmKernel(length, TILE, CLUSTER)

        @cute.jit
        def launch(
            a: cute.Pointer, b: cute.Pointer, left: cute.Pointer, right: cute.Pointer,
            c: cute.Pointer, stream: Any,
        ) -> None:  # fmt: skip
            kernel(a, b, left, right, c, layouts, (size, size, k, 1), clusters, stream)

        types = (element, element, scale, scale, c_type)
        pointers = [make_ptr(each, 0, memory, assumed_align=32) for each in types]
        return cute.compile(launch, *pointers, stream, options="--keep-ptx")

    found["mxfp8"] = block_scaled(cutlass.Float8E4M3FN, cutlass.Float8E8M0FNU, 32, size)
    found["nvfp4"] = block_scaled(cutlass.Float4E2M1FN, cutlass.Float8E4M3FN, 16, 2 * size)
    print(json.dumps({name: each.__ptx__ for name, each in found.items()}), file=output)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
