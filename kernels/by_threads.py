"""What kernels whose operands threads load are compiled for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from triton_ext.compat import compile_kernel
from triton_ext.kernels.choice.by_threads import ThreadAccess, ThreadDivision, ThreadTile
from triton_ext.kernels.choice.gemv import GemvTile, padded
from triton_ext.kernels.choice.problem import Problem
from triton_ext.kernels.device.by_threads import matmul_by_threads
from triton_ext.kernels.device.gemv import gemv
from triton_ext.kernels.epilogue import NO_EPILOGUE, EpilogueSpec
from triton_ext.kernels.product import ProductSpec, bias_type


@dataclass(frozen=True)
class ThreadSpec:
    """One kernel.

    Attributes:
        arch: 90 or 100.
        product: what it multiplies; of it the types are used.
        access: how it reads the operands and writes C.
        tile: what a block makes at a time.
        vectors: how many a `gemv` takes; 0 of another kernel.
        is_cut: whether the tiles are cut along K.
        epilogue: what follows the product.
    """

    arch: int
    product: ProductSpec
    access: ThreadAccess
    tile: ThreadTile | GemvTile
    vectors: int = 0
    is_cut: bool = False
    epilogue: EpilogueSpec = NO_EPILOGUE

    @property
    def kernel(self) -> Any:
        """Its function."""
        return gemv if isinstance(self.tile, GemvTile) else matmul_by_threads

    @property
    def constants(self) -> dict[str, Any]:
        """The values of the function's compile-time arguments."""
        access, tile, epilogue = self.access, self.tile, self.epilogue
        found: dict[str, Any] = {
            "BIAS": epilogue.bias, "RESIDUAL": epilogue.residual,
            "ACTIVATION": epilogue.activation, "SPLITS": self.is_cut,
        }  # fmt: skip
        if isinstance(tile, GemvTile):
            return found | {
                "OF_A": access.matrix == "a", "K_MAJOR": access.matrix_k_major,
                "VECTORS": self.vectors, "PADDED": padded(self.vectors), "ROWS": tile.rows,
                "CHUNKS": tile.chunks,
            }  # fmt: skip
        return found | {
            "A_K_MAJOR": access.a_k_major, "B_K_MAJOR": access.b_k_major, "A_UNIT": access.a_unit,
            "B_UNIT": access.b_unit, "C_UNIT": access.c_unit, "BLOCK_M": tile.block_m,
            "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "LOADS": tile.loads,
        }  # fmt: skip

    @property
    def options(self) -> dict[str, Any]:
        """Those of its compilation."""
        found = {"num_warps": self.tile.num_warps}
        return (
            found if isinstance(self.tile, GemvTile) else found | {"num_stages": self.tile.stages}
        )

    def fields(self) -> dict[str, Any]:
        """What tells it from others of its function."""
        return {"kernel": self.kernel.__name__, **self.constants, **self.options}

    def compile(self) -> Any:
        """Compile it as its first launch would; needs no GPU. Returns Triton's compiled kernel."""
        constants, a, c = self.constants, self.product.element_type, self.product.c_type
        bias = bias_type(self.product) if self.epilogue.bias else c
        parts, counters = ("fp32", "i32") if self.is_cut else (c, c)  # C where they are not used
        types = {"a": a, "b": a, "c": c, "bias": bias, "residual": c, "parts": parts,
                 "counters": counters}  # fmt: skip
        signature = dict.fromkeys(self.kernel.arg_names, "i32")
        signature |= dict.fromkeys(("alpha", "beta"), "fp32")
        signature |= {name: f"*{kind}" for name, kind in types.items()}
        signature |= dict.fromkeys(constants, "constexpr")
        return compile_kernel(
            self.kernel, signature, constants, target=self.arch, launch_pdl=True, **self.options
        )


def thread_spec(
    arch: int, product: ProductSpec, problem: Problem, access: ThreadAccess,
    division: ThreadDivision, epilogue: EpilogueSpec = NO_EPILOGUE,
) -> ThreadSpec:  # fmt: skip
    """The kernel of a product of some size."""
    tile, splits = division
    vectors = min(problem.m, problem.n) if isinstance(tile, GemvTile) else 0
    return ThreadSpec(arch, product, access, tile, vectors, splits > 1, epilogue)
