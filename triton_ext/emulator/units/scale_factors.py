"""What the codes of scale factors mean (PTX ISA, "Block Scaling" of tcgen05 and of mma)."""

from __future__ import annotations

import ml_dtypes
import numpy as np

E2M1_SHIFT = 2
"""A 4-bit element in a container of 8 bits is in bits 2 to 5; one of 6 bits is in the low bits (PTX
ISA, "Packing format used for matrix A by .kind::mxf8f6f4 in Tensor Memory", its figures, and
"mma", ".kind::f8f6f4"; Triton's test of an fp4 operand in tensor memory)."""

SCALES = {
    "ue8m0": np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan),
    "ue4m3": (np.arange(256) & 127)
    .astype(np.uint8)
    .view(ml_dtypes.float8_e4m3fn)
    .astype(np.float64),
}
"""Scale type -> the value of each of its 256 codes, as float64."""
