"""The passes of `triton_ext` as an extension of Triton, which an import turns on.

    import triton_layouts

From then on every kernel that the process compiles for sm_90 or sm_100 goes through `PASSES`, which
change nothing and raise an error where a kernel's layouts or descriptors are wrong; or, if the
environment variable TRITON_EXT_PASSES is set, through the passes that it names. What they say is in
``kernel.metadata.triton_layouts``. `uninstall` turns them off.

Extensions in https://github.com/triton-lang/triton-ext are modules of this kind: ``triton_<name>``
of a distribution ``triton-<name>``, registered with Triton by their import.
"""

import os

from triton_ext import variables
from triton_ext.passes import install, uninstall

__all__ = ["PASSES", "install", "uninstall"]

PASSES = ("verify-descriptors", "check-conversion")
"""The passes that the import turns on."""

install(*(() if variables.PASSES in os.environ else PASSES))
