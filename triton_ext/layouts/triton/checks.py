"""An NVMMAShared layout held against what others say: the documented atom, and Triton."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.encodings import NVMMAShared
from triton_ext.layouts.nvmma_shared import core_matrix_linear_layout, nvmma_shared_to_linear_layout
from triton_ext.layouts.triton.known_faults import known_fault
from triton_ext.layouts.triton.oracle import TritonOracle


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one comparison, with a sentence that says what was compared."""

    agrees: bool
    message: str


def check_against_documented_atom(encoding: NVMMAShared) -> CheckResult:
    """Compare the atom with the documents' ``Swizzle<B, 4, 3>`` formula.

    With fp4_padded there is no documented formula over packed bytes; the unpadded atom is compared.
    """
    plain = NVMMAShared(encoding.swizzle_byte_width, encoding.element_bitwidth)
    atom = SwizzleAtom("K", encoding.swizzle_byte_width, encoding.element_bitwidth)
    agrees = core_matrix_linear_layout(plain) == atom.to_linear_layout()
    verb = "equals" if agrees else "DIFFERS FROM"
    return CheckResult(agrees, f"the atom {verb} the documented one: {atom}")


def check_against_triton(shape: Sequence[int], encoding: NVMMAShared) -> CheckResult:
    """Compare the tile with Triton's own conversion, in a child process.

    Where the release is known to be wrong, agreement means that it returns what `known_faults`
    says, and the message names the fault. Raises LayoutError: an illegal shape; RuntimeError:
    Triton cannot be imported.
    """
    ours = nvmma_shared_to_linear_layout(shape, encoding)
    oracle = TritonOracle()
    name = f"Triton {oracle.version}"
    answer = oracle.convert([(shape, encoding)])[0]
    if isinstance(answer, str):
        return CheckResult(False, f"{name} gives no layout: {answer}")
    if answer.has_bases_of(ours):
        return CheckResult(True, f"the tile equals {name}'s own conversion")
    major, minor = map(int, oracle.version.split(".")[:2])
    if fault := known_fault((major, minor), shape, encoding, answer):
        return CheckResult(
            True, f"{name} is known to be wrong here ({fault.title}): {fault.why_wrong}"
        )
    return CheckResult(False, f"the tile DIFFERS FROM {name}'s own: {answer}")
