"""Compiles a conversion between two layouts to PTX, with whatever Triton can be imported.

Reads a JSON list of jobs from stdin and writes one JSON result a line, after Triton's version. A
job has the architecture, the element type, the number of elements, of warps and of blocks, and the
bases of the two layouts, over one dimension. A result has the PTX, and the bytes of shared memory.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import triton
from forked import serve
from mma_worker import stop_at_ptx
from triton import knobs

from triton_ext.compat import gpu_target

MODULE = """\
#a = {a}
#b = {b}
module attributes {{"ttg.num-ctas" = {blocks} : i32, "ttg.num-warps" = {warps} : i32,\
 ttg.target = "cuda:{arch}", "ttg.threads-per-warp" = 32 : i32}} {{
  tt.func public @convert(%in: !tt.ptr<{element}>, %out: !tt.ptr<{element}>) {{
    %i = tt.make_range {{end = {size} : i32, start = 0 : i32}} : tensor<{size}xi32, #a>
    %j = tt.make_range {{end = {size} : i32, start = 0 : i32}} : tensor<{size}xi32, #b>
    %from = tt.splat %in : !tt.ptr<{element}> -> tensor<{size}x!tt.ptr<{element}>, #a>
    %to = tt.splat %out : !tt.ptr<{element}> -> tensor<{size}x!tt.ptr<{element}>, #b>
    %p = tt.addptr %from, %i : tensor<{size}x!tt.ptr<{element}>, #a>, tensor<{size}xi32, #a>
    %q = tt.addptr %to, %j : tensor<{size}x!tt.ptr<{element}>, #b>, tensor<{size}xi32, #b>
    %x = tt.load %p : tensor<{size}x!tt.ptr<{element}>, #a>
{convert}    tt.store %q, %y : tensor<{size}x!tt.ptr<{element}>, #b>
    tt.return
  }}
}}
"""


CONVERT = """\
    %y = ttg.convert_layout %x : tensor<{size}x{element}, #a> -> tensor<{size}x{element}, #b>
"""
CONVERT_BITS = """\
    %u = arith.trunci %x : tensor<{size}xi8, #a> to tensor<{size}xi1, #a>
    %v = ttg.convert_layout %u : tensor<{size}xi1, #a> -> tensor<{size}xi1, #b>
    %y = arith.extui %v : tensor<{size}xi1, #b> to tensor<{size}xi8, #b>
"""


def attribute(bases):
    """The MLIR attribute of a layout over one dimension."""
    named = [
        f"{name} = {[[value] for value in bases.get(name, ())]}"
        for name in ("register", "lane", "warp", "block")
    ]
    return f"#ttg.linear<{{{', '.join(named)}}}>"


def run(job):
    parts = job | {"a": attribute(job["a"]), "b": attribute(job["b"])}
    convert = CONVERT
    if job["element"] == "i1":  # which no memory holds
        convert, parts["element"] = CONVERT_BITS, "i8"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "convert.ttgir"
        path.write_text(MODULE.format(convert=convert.format(**parts), **parts))
        knobs.runtime.add_stages_inspection_hook = stop_at_ptx
        options = {"num_warps": job["warps"], "num_ctas": job["blocks"]}
        compiled = triton.compile(str(path), target=gpu_target(job["arch"]), options=options)
    return {"ptx": compiled.asm["ptx"], "shared": compiled.metadata.shared}


if __name__ == "__main__":
    serve(run)
