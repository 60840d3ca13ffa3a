"""One typed reading of the operands of each asynchronous and tensor-core instruction.

`read` is the one place that knows which operand of an MMA, TMA, mbarrier or tensor-memory
instruction is which: the emulator decodes its result, the notes explain it, and the passes compare
it with what the TTGIR says.
"""

from __future__ import annotations

from functools import lru_cache

from triton_ext.ptx.forms.copies import BulkCopy, BulkGroup, TensorCopy
from triton_ext.ptx.forms.mbarriers import MbarrierOperation
from triton_ext.ptx.forms.products import Tcgen05Product, WgmmaGroup, WgmmaProduct
from triton_ext.ptx.forms.syntax import Form, Syntax
from triton_ext.ptx.forms.tensor_memory import (
    Tcgen05Order,
    TensorCoreCommit,
    TensorMemoryAccess,
    TensorMemoryAllocation,
    TensorMemoryCopy,
    TensorMemoryShift,
)
from triton_ext.ptx.parse import Instruction

FORMS: tuple[type[Form], ...] = (
    WgmmaProduct, WgmmaGroup, Tcgen05Product, TensorMemoryAllocation, TensorMemoryAccess,
    TensorMemoryCopy, TensorMemoryShift, TensorCoreCommit, Tcgen05Order, TensorCopy, BulkCopy,
    BulkGroup, MbarrierOperation,
)  # fmt: skip
_SYNTAX = {base: Syntax(form, base) for form in FORMS for base in form.OPCODES}


@lru_cache(maxsize=4096)
def _base(opcode: str) -> str:
    """The longest beginning of an opcode that has a form; "" if there is none."""
    while opcode and opcode not in _SYNTAX:
        opcode = opcode.rpartition(".")[0]
    return opcode


@lru_cache(maxsize=4096)
def read(instruction: Instruction) -> Form | None:
    """The form of an instruction; None for instructions of other families. Raises LayoutError: a
    modifier or an operand is unknown, missing or not legal beside the others."""
    base = _base(instruction.opcode)
    return _SYNTAX[base].read(instruction) if base else None


__all__ = [
    "FORMS",
    "BulkCopy",
    "BulkGroup",
    "Form",
    "MbarrierOperation",
    "Tcgen05Order",
    "Tcgen05Product",
    "TensorCopy",
    "TensorCoreCommit",
    "TensorMemoryAccess",
    "TensorMemoryAllocation",
    "TensorMemoryCopy",
    "TensorMemoryShift",
    "WgmmaGroup",
    "WgmmaProduct",
    "read",
]
