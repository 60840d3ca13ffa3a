"""Products of matrices that the ranks of a group share, while the parts travel between them.

`all_gather_matmul`, `matmul_reduce_scatter` and `matmul_all_reduce` are what tensor parallelism
asks for: column-wise and row-wise layers of a sequence that is divided among the ranks.
"""

from triton_ext.distributed.functional import (
    all_gather_matmul,
    matmul_all_reduce,
    matmul_reduce_scatter,
)
from triton_ext.distributed.workspace import Workspace, emulated_workspaces

__all__ = [
    "Workspace",
    "all_gather_matmul",
    "emulated_workspaces",
    "matmul_all_reduce",
    "matmul_reduce_scatter",
]
