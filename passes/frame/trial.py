"""A piece of work tried in a forked process first, where only the fork dies of it.

Triton's C++ aborts the process on some modules that its verifier takes. A module that a pass made
is lowered in a fork before the process itself sees it.
"""

from __future__ import annotations

import faulthandler
import os
import re
import resource
import select
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

_SECONDS = 300.0
"""How long a trial may take: many times what lowering a large kernel does."""
_ASSERTION = re.compile(r"Assertion `.*' failed|LLVM ERROR: .*|UNREACHABLE.*")


@dataclass(frozen=True)
class Trial:
    """How a trial ended.

    Attributes:
        died: whether the process did not end by itself: a signal, or no end at all.
        message: what it said of that, or the exception that was raised; "" if all went well.
    """

    died: bool = False
    message: str = ""


def tried(work: Callable[[], object], seconds: float = _SECONDS) -> Trial:
    """Do something in a fork of this process, and say how that ended. `seconds`: after which the
    fork is ended."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Of threads, of which the fork has none: nothing in it waits for them, but for the limit.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        _in_the_fork(work, writer)
    os.close(writer)
    said, ended = _read(reader, time.monotonic() + seconds)
    if not ended:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not ended:
        return Trial(True, f"it did not end within {seconds:g} seconds")
    if status < 0:
        found = _ASSERTION.search(said)
        why = f": {found[0]}" if found else ""
        return Trial(True, f"the process ends with {signal.Signals(-status).name}{why}")
    return Trial(message=said.strip().splitlines()[-1] if status and said.strip() else "")


def _in_the_fork(work: Callable[[], object], writer: int) -> None:
    status = 1
    try:
        faulthandler.disable()  # nor is a death here anything to show, or to keep a core of
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(writer, 2)
        work()
        status = 0
    except BaseException as error:
        os.write(2, f"\n{type(error).__name__}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(status)


def _read(reader: int, until: float) -> tuple[str, bool]:
    """What a fork says on stderr, and whether it closed it in time."""
    said = b""
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while (left := until - time.monotonic()) > 0:
            if not select.select([pipe], [], [], left)[0]:
                break
            more = pipe.read(1 << 16)
            if not more:
                return said.decode(errors="replace"), True
            said = (said + more)[-(1 << 16) :]
    return said.decode(errors="replace"), False
