"""Programs in TileLang, as its documentation writes them: each makes one kernel.

TileLang evaluates the annotations: no import from `__future__` may make text of them.
"""

from typing import Any

import tilelang.language as T

M, N, K = 128, 128, 96
ROWS, COLUMNS = 16, 256


def matmul(kind: str = "float16", sums: str = "float32", transposed: bool = False) -> Any:
    """A pipelined product, with B as it is or transposed."""
    tile_m, tile_n, tile_k = 64, 64, 32
    shape, part = ((N, K), (tile_n, tile_k)) if transposed else ((K, N), (tile_k, tile_n))

    @T.prim_func
    def main(
        A: T.Tensor((M, K), kind), B: T.Tensor(shape, kind), C: T.Tensor((M, N), sums)
    ) -> None:
        with T.Kernel(T.ceildiv(N, tile_n), T.ceildiv(M, tile_m), threads=128) as (x, y):
            a = T.alloc_shared((tile_m, tile_k), kind)
            b = T.alloc_shared(part, kind)
            c = T.alloc_fragment((tile_m, tile_n), sums)
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, tile_k), num_stages=2):
                T.copy(A[y * tile_m, k * tile_k], a)
                if transposed:
                    T.copy(B[x * tile_n, k * tile_k], b)
                else:
                    T.copy(B[k * tile_k, x * tile_n], b)
                T.gemm(a, b, c, transpose_B=transposed)
            T.copy(c, C[y * tile_m, x * tile_n])

    return main


def softmax() -> Any:
    @T.prim_func
    def main(
        X: T.Tensor((ROWS, COLUMNS), "float32"), Y: T.Tensor((ROWS, COLUMNS), "float32")
    ) -> None:
        with T.Kernel(ROWS // 4, threads=128) as x:
            rows = T.alloc_fragment((4, COLUMNS), "float32")
            most = T.alloc_fragment((4,), "float32")
            total = T.alloc_fragment((4,), "float32")
            T.copy(X[x * 4, 0], rows)
            T.reduce_max(rows, most, dim=1)
            for i, j in T.Parallel(4, COLUMNS):
                rows[i, j] = T.exp(rows[i, j] - most[i])
            T.reduce_sum(rows, total, dim=1)
            for i, j in T.Parallel(4, COLUMNS):
                rows[i, j] = rows[i, j] / total[i]
            T.copy(rows, Y[x * 4, 0])

    return main


def add() -> Any:
    @T.prim_func
    def main(
        X: T.Tensor((ROWS, COLUMNS), "float32"), Y: T.Tensor((ROWS, COLUMNS), "float32"),
        Z: T.Tensor((ROWS, COLUMNS), "float32"),
    ) -> None:  # fmt: skip
        with T.Kernel(ROWS // 4, threads=64) as x:
            for i, j in T.Parallel(4, COLUMNS):
                Z[x * 4 + i, j] = X[x * 4 + i, j] + Y[x * 4 + i, j]

    return main
