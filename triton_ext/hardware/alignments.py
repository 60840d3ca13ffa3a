"""What addresses and sizes of asynchronous instructions must be multiples of.

One list: the emulator raises its faults by it, and verify-descriptors holds compiled kernels to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from triton_ext.hardware.tensor_map import SMEM_ALIGNMENT, TENSOR_MAP_ALIGNMENT


@dataclass(frozen=True)
class AlignmentRule:
    """A rule.

    Attributes:
        what: the address or size, in words.
        multiple: what it must be a multiple of, in bytes.
        source: the document and section.
    """

    what: str
    multiple: int
    source: str

    def broken(self, value: int, name: str = "") -> str:
        """What is wrong with an address or a size; "" if nothing is.

        Args:
            value: in bytes.
            name: the value, in words; the number if it has no name.
        """
        if value % self.multiple == 0:
            return ""
        return f"{self.what.format(name or f'{value:#x}')} must be a multiple of {self.multiple}"


BOX = AlignmentRule(
    "shared address {} of a box",
    SMEM_ALIGNMENT,
    'PTX ISA 9.0, "cp.async.bulk.tensor": dstMem, srcMem',
)
BULK_ADDRESS = AlignmentRule("bulk copy: {}", 16, 'PTX ISA 9.0, "cp.async.bulk": dstMem, srcMem')
BULK_SIZE = AlignmentRule("bulk copy: size {}", 16, 'PTX ISA 9.0, "cp.async.bulk": size')
TENSOR_MAP = AlignmentRule(
    "tensor map address {}", TENSOR_MAP_ALIGNMENT, "CUDA driver API, cuTensorMapEncodeTiled"
)
MBARRIER = AlignmentRule("mbarrier address {}", 8, 'PTX ISA 9.0, "mbarrier": alignment')
RESPONSE = AlignmentRule(
    "response address {}", 16, 'PTX ISA 9.0, "clusterlaunchcontrol.try_cancel": addr'
)
