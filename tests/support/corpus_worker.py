"""Compiles the jobs of `pass_corpus.py` to PTX, with whatever Triton can be imported.

Reads a JSON list of jobs from stdin and writes JSON lines: Triton's version; for each job, one line
a kernel that it compiled, ``{"job", "name", "kernel", "ttgir", "ptx", "metadata"}``, and
``{"job", "name", "error"}`` where it failed or compiled nothing; last the files of all modules that
were imported.

With ``"passes": [...]`` in a job, the compiler passes of those names are on, and what they found is
in the metadata under ``triton_ext``; with ``"cubin": true``, ptxas runs.

A job says what to do as ``{"do": how, ...}`` (see `DO`). Kernels are launched as on a GPU, on the
emulated one, with a launcher that runs nothing; `triton.knobs.compilation.listener` tells of each
kernel that is compiled on the way. Each job has a process of its own, as Triton keeps what it
compiled, and aborts on some inputs.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

import kernel_cases
import mma_worker
import torch
import triton
from corpus_cache import loaded_files
from forked import forked, own_cache
from triton import knobs
from up_to_ptx import up_to_ptx

import triton_ext


def idle_launcher(source, metadata):
    """In place of a driver's launcher: it runs nothing."""
    return lambda *arguments: None


def set_active_but_idle(driver, set_active=triton.runtime.driver.set_active):
    """Triton's `set_active`, for a driver whose launches do nothing."""
    if driver is not None:
        driver.launcher_cls = idle_launcher
    set_active(driver)


def case(job):
    """A case of `kernel_cases.py`."""
    [found] = [each for each in kernel_cases.all_cases() if each.name == job["case"]]
    with triton_ext.emulate(job["arch"], cuda_on_host=True):
        found.run("cuda", True)


def matmul(job):
    """A configuration of this project's matmul."""
    from triton_ext.kernels.launch import compile_matmul, kernel_constants
    from triton_ext.kernels.spec import kernel_spec

    config = kernel_spec(job["arch"], **job["config"])
    compile_matmul(config, kernel_constants(config, generated_layouts=job["generated"]))


def mma(job):
    """One product of `mma_worker.py`."""
    mma_worker.run(job["product"])


def kernel(job):
    """A function that launches a kernel, of `corpus_kernels.py` or `corpus_gluon_kernels.py`."""
    module = importlib.import_module(job["module"])
    with triton_ext.emulate(job["arch"], cuda_on_host=True):
        getattr(module, job["kernel"])(**job["arguments"])


def third_party(job):
    """A test of `third_party_kernels.py`; as nothing runs, its results are wrong."""
    tests = importlib.import_module("third_party_kernels")
    instance = getattr(tests, job["group"])()
    try:
        getattr(instance, job["test"])(f"sm_{job['arch']}")
    except AssertionError as error:
        last = error.__traceback__
        while last.tb_next:
            last = last.tb_next
        if Path(last.tb_frame.f_code.co_filename) != Path(tests.__file__):
            raise


DO = {each.__name__: each for each in (case, matmul, mma, kernel, third_party)}


def enabled(passes):
    """The context in which compiler passes are on."""
    if not passes:
        return nullcontext()
    from triton_ext import passes as frame

    return frame.enabled(*passes)


def run(job):
    """The kernels that a job compiles, as they lie in Triton's cache; why it failed, or None."""
    groups = []
    knobs.compilation.listener = lambda **told: groups.append(told["metadata_group"])
    torch.manual_seed(0)
    error = None
    try:
        with (
            nullcontext() if job.get("cubin") else up_to_ptx(),
            redirect_stdout(sys.stderr),  # passes may print reports
            enabled(job.get("passes")),
        ):
            DO[job["do"]](job)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    if not groups and error is None:
        error = "nothing was compiled"
    return {"kernels": groups, "error": error, "files": sorted(loaded_files())}


WARM_UP = [
    {"do": "mma", "product": mma_worker.WARM_UP},
    *(
        {
            "do": "kernel", "module": "corpus_kernels", "kernel": "warm_up", "arch": arch,
            "arguments": {},
        }
        for arch in (90, 100)
    ),
]  # fmt: skip


def read_kernel(group):
    files = {path.rsplit(".", 1)[1]: Path(path) for path in group.values()}
    return {
        "kernel": files["ttgir"].stem,
        "ttgir": files["ttgir"].read_text(),
        "ptx": files["ptx"].read_text(),
        "metadata": json.loads(files["json"].read_text()),
    }


def lines(job, files):
    """A line a kernel, and one for an error; adds to `files` what the job imported."""
    found = {"kernels": [], "error": None, "files": []} | forked(run, job)
    files.update(found["files"])
    groups = list({json.dumps(group): group for group in found["kernels"]}.values())
    for i, group in enumerate(groups):
        name = job["name"] if len(groups) == 1 else f"{job['name']}.{i}"
        yield {"job": job["name"], "name": name, **read_kernel(group)}
    if found["error"]:
        yield {"job": job["name"], "name": job["name"], "error": found["error"]}


if __name__ == "__main__":
    torch.set_num_threads(1)  # its threads do not outlive a fork
    os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # 3.9 warns where it is left to its default
    triton.runtime.driver.set_active = set_active_but_idle
    print(json.dumps(triton.__version__), flush=True)
    with own_cache():
        jobs = json.load(sys.stdin)
        for each in WARM_UP:  # what is set up once, for all forks
            run(each)
        for module in sorted({job.get("module", "triton_ext.kernels.launch") for job in jobs}):
            importlib.import_module(module)
        files = loaded_files()
        for job in jobs:
            for line in lines(job, files):
                print(json.dumps(line), flush=True)
    print(json.dumps(sorted(files)))
