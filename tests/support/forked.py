"""The loop of the workers: jobs as JSON on stdin, each in a forked process, a result a line.

Triton aborts the process on some inputs; only the fork dies.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import shutil
import sys
import tempfile
from contextlib import contextmanager

import triton

MEMORY = "/dev/shm"
ROOM = 1 << 30


@contextmanager
def own_cache():
    """A cache of Triton's for this process and its forks, and for no other.

    In memory, if there is room: Triton makes and removes eight folders a kernel, a fifth of the
    time of a small one on a disk. And without the hash of all of Triton, half a gigabyte.
    """
    there = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM
    with tempfile.TemporaryDirectory(dir=MEMORY if there else None) as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        triton.runtime.cache.triton_key = lambda: "of one process"
        gc.disable()  # forks are short, and a collection goes through all of torch and Triton
        yield


def attempt(run, job):
    """What `run(job)` returns, or the exception that it raises."""
    try:
        return run(job)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[-400:]}


def forked(run, job, seconds=None):
    """What `run(job)` returns, or why it does not: an exception, or the death of the process.

    Args:
        seconds: of processor time after which the process ends; None: it may take any.
    """
    reader, writer = os.pipe()
    worker = os.fork()
    if not worker:
        os.close(reader)
        if seconds:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        result = attempt(run, job)
        with os.fdopen(writer, "w") as out:
            json.dump(result, out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    status = os.waitpid(worker, 0)[1]
    return json.loads(text) if text else {"error": f"aborted with status {status}"}


def serve(run, kind=None):
    """Print Triton's version, then the result of each job.

    Args:
        kind: of a job. The first of each kind is run in this process, so that the forks for the
            others inherit what Triton sets up once: half of the time of a small compilation. That
            one must not abort.
    """
    print(json.dumps(triton.__version__), flush=True)
    seen = set()
    with own_cache():
        for job in json.load(sys.stdin):
            is_first = kind is not None and kind(job) not in seen
            if is_first:
                seen.add(kind(job))
            print(json.dumps((attempt if is_first else forked)(run, job)), flush=True)
