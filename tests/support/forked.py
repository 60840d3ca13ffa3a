"""The loop of the workers: jobs as JSON on stdin, each in a forked process, a result a line.

Triton aborts the process on some inputs; only the fork dies.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

import triton


def forked(run, job):
    """What `run(job)` returns, or why it does not: an exception, or the death of the process."""
    reader, writer = os.pipe()
    worker = os.fork()
    if not worker:
        os.close(reader)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            result = run(job)
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"[-400:]}
        with os.fdopen(writer, "w") as out:
            json.dump(result, out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    status = os.waitpid(worker, 0)[1]
    return json.loads(text) if text else {"error": f"aborted with status {status}"}


def serve(run):
    """Print Triton's version, then the result of each job."""
    print(json.dumps(triton.__version__), flush=True)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        for job in json.load(sys.stdin):
            print(json.dumps(forked(run, job)), flush=True)
