"""Compiles matmul kernels, each in a forked process, with whatever Triton can be imported.

Reads a JSON list of jobs from stdin and writes one JSON result a line; the first line of the output
is Triton's version. A job is ``{"config": {...}}``; with ``"mutation": [operand, basis, dim, bit]``
one bit of a layout is flipped. A result says what became of it: the PTX without debug lines, or the
error; with ``"compared": true`` the PTX of Triton's encodings, too, and with ``"resources": true``
what the cubin uses.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import replace

import triton
from forked import serve
from up_to_ptx import up_to_ptx

from triton_ext.kernels.launch import compile_matmul, kernel_constants
from triton_ext.kernels.spec import kernel_spec
from triton_ext.layouts.triton.gluon import to_gluon
from triton_ext.ptx.text import without_debug_lines


def mutated(config, constants, mutation):
    """The kernel's constants with one bit of one basis of an operand's layout flipped."""
    operand, index, dim, bit = mutation
    linear = (config.layouts.a if operand == "A" else config.layouts.b).linear
    bases = [list(basis) for basis in linear.offset_bases]
    bases[index][dim] ^= bit
    layout = to_gluon(linear)
    layout.offset_bases[:] = bases
    changed = replace(constants["PLAN"], **{"left" if operand == "A" else "right": layout})
    return constants | {"PLAN": changed}


def resources(cubin):
    """Registers, stack and local memory a thread, as NVIDIA's cuobjdump reports them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        report = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    return {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", report)}


def text_of(kernel):
    """Its PTX; `up_to_ptx` hooks into the compilation, which leaves the last barrier as it is."""
    return without_debug_lines(kernel.asm["ptx"]).replace("arrive.relaxed", "arrive")


def ptx_of(config, constants):
    with up_to_ptx():
        return text_of(compile_matmul(config, constants))


def run(job):
    config = kernel_spec(**job["config"])
    constants = kernel_constants(config)
    if job.get("mutation"):
        constants = mutated(config, constants, job["mutation"])
    if job.get("resources"):
        kernel = compile_matmul(config, constants)
        found = {
            "ptx": text_of(kernel),
            "resources": resources(kernel.asm["cubin"]),
        }
    else:
        found = {"ptx": ptx_of(config, constants)}
    if job.get("compared"):
        found["nvmma_ptx"] = ptx_of(config, kernel_constants(config, generated_layouts=False))
    return found


def kind(job):
    """Jobs of the same kind compile the same functions."""
    return job["config"]["arch"], "consumers" in job["config"]


if __name__ == "__main__":
    serve(run, kind)
