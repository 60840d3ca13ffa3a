"""A compiler pass of one's own: it names the shared memory that each kernel of a program takes.

triton-ext run --emulate sm_90 examples/own_pass.py
"""

from __future__ import annotations

import torch

import triton_ext
from triton_ext import passes


@passes.compiler_pass("allocations", after="ttgir")
def allocations(compilation, options):
    """Notes each allocation of shared memory, with its shape and encoding."""
    found = []
    for operation in compilation.ttgir.operations:
        if operation.name == "ttg.local_alloc":
            memory = compilation.ttgir.memory(operation.results[0])
            said = f"{memory.shape} of {memory.element}, {memory.encoding}"
            found.append(passes.Diagnostic("note", said, location=operation.location))
    return passes.Outcome(diagnostics=found)


a = torch.randn(128, 64, device="cuda", dtype=torch.float16)
with passes.enabled("allocations"):
    triton_ext.matmul(a, a.T)
