"""The museum: bugs of published kernels and compilers, each as a minimal kernel of our own.

`exhibits.EXHIBITS` holds them all; ``docs/reference/museum.md`` is written from it (``make docs``).
"""
