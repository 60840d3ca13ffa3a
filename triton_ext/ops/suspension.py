"""Whether this thread's products are PyTorch's own, whatever `drop_in` is active."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_here = threading.local()


def is_suspended() -> bool:
    """Whether they are."""
    return getattr(_here, "suspended", False)


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """In which they are."""
    before, _here.suspended = is_suspended(), True
    try:
        yield
    finally:
        _here.suspended = before
