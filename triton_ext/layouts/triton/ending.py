"""The end of a process in which Triton's C++ keeps what it was given."""

from __future__ import annotations

import atexit
import ctypes
import functools
import sys


@functools.cache
def end_quietly() -> None:
    """Let a process that compiled Gluon kernels, or converted layouts, end without a word.

    Triton's C++ takes references to some Python classes that it never gives back (``GluonLayouts``
    in ``gluon_ir.cc``, and the types by which launches are specialised). By the globals of their
    methods all of Triton's bindings can outlive the interpreter, and nanobind (Triton 3.9) then
    lists them on stderr. Python does empty the globals of modules at the end, but only of those
    modules that are still alive: so Triton's are kept alive.
    """
    atexit.register(_keep_modules)


def _keep_modules() -> None:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "triton":
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
