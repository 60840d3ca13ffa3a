"""What Triton's own bindings say of modules: the oracle of `triton_ext.mlir.module`.

Reads a JSON list of module texts from stdin; prints a JSON line for each: its operations in the
order of ``module.walk``, with the number of operands and the types of the results, or null if this
release cannot read it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend


def walked(text, path):
    context = ir.context()
    ir.load_dialects(context)
    CUDABackend(GPUTarget("cuda", 90, 32)).load_dialects(context)
    path.write_text(text)
    try:
        module = ir.parse_mlir_module(str(path), context)
    except RuntimeError:
        return None
    found = []

    def visit(operation):
        results = [operation.get_result(i) for i in range(operation.get_num_results())]
        types = [str(value.get_type()) for value in results]
        found.append([operation.get_name(), operation.get_num_operands(), types])

    module.walk(visit)
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for text in json.load(sys.stdin):
            print(json.dumps(walked(text, Path(folder) / "module.ttgir")), flush=True)
