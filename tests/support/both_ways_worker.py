"""Compiles TTGIR to PTX with passes on, with whatever Triton can be imported.

A job is ``{"ttgir", "arch", "options", "passes"}``; its result ``{"ptx", "said"}``, the PTX and the
report and diagnostics of each pass. See `forked.py` for how jobs come and results go.
"""

from __future__ import annotations

from forked import serve
from up_to_ptx import compile_to_ptx


def run(job):
    ptx, results = compile_to_ptx(
        job["ttgir"], *job["passes"], arch=job["arch"], options=job["options"]
    )
    said = [
        {"report": result.report, "diagnostics": list(map(str, result.diagnostics))}
        for result in results.all
    ]
    return {"ptx": ptx, "said": said}


if __name__ == "__main__":
    serve(run, kind=lambda job: job["arch"])
