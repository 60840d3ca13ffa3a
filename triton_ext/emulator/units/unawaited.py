"""Bulk copies and arrivals that nobody has waited for when their block ends, and copies whose bytes
nobody reads."""

from __future__ import annotations

import numpy as np

from triton_ext.emulator.errors import SynchronizationFault, UnreadCopy, UnreadSums
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.leniencies import LAST_STORE
from triton_ext.emulator.state.shared import SharedMemory
from triton_ext.emulator.state.stamps import GRANULE
from triton_ext.emulator.state.tensor_memory import Cells, TensorMemory, unread


def check_awaited(cta: Cta) -> None:
    """Raise SynchronizationFault if a block has ended, and nobody waited for its last copies.

    A group that was waited for keeps the copies whose writes are outstanding: those may be.
    """
    seen = cta.cluster.clocks.seen
    for unit, event in cta.under_way.copied_in.items():
        if (np.delete(seen[:, unit], unit) < event).all():
            raise SynchronizationFault(
                "the block ends, and no thread has waited for a copy that TMA has made into shared"
                " memory: it could still be in flight when the memory belongs to another block"
            )
    for thread, groups in cta.under_way.bulk_groups.items():
        for committed, group in ((False, groups.open), *((True, g) for g in groups.committed)):
            for copy in group:
                if copy.awaited:
                    continue
                lanes = slice(thread, thread + 1)
                if not cta.takes(LAST_STORE, lanes, copy.instruction):
                    raise SynchronizationFault(
                        "the block ends, and the thread that issued this copy out of shared memory"
                        " has not waited for it"
                        + ("" if committed else " (nor committed it to a group)")
                        + ": TMA could still read the memory when it belongs to another block;"
                        " cp.async.bulk.wait_group or .wait_group.read is missing",
                        copy.instruction,
                        cta.describe(lanes),
                    )


def check_arrived(cta: Cta) -> None:
    """Raise SynchronizationFault if a block may end before asynchronous work of its own arrives at
    an mbarrier of its own for the last time.

    Of a commit to several blocks it is enough that its work is known to be done, as at the end of
    NVIDIA's MLA decoding (`triton_ext.emulator.units.mbarriers.check_others`).
    """
    for last in cta.under_way.arrivals.values():
        if any(phase < barrier.awaited for barrier, phase in last.phases):
            continue
        (barrier, phase), *_ = last.phases
        raise SynchronizationFault(
            f"the block ends, and nobody has waited for this arrival at {barrier.name}, in phase"
            f" {phase}, nor for a later one (mbarrier.try_wait): it could come when the memory is"
            " another block's",
            last.instruction,
            cta.describe(last.lanes),
        )


def check_unread_sums(memory: TensorMemory, cells: Cells) -> None:
    """Raise UnreadSums if a product is about to overwrite sums of an earlier one, and nobody has
    read them.
    """
    found = unread(memory, cells)
    if found is not None and (at := memory.products.get(found[2])):
        lane, column, _ = found
        raise UnreadSums(
            f"tensor memory lane {lane}, column {column} is overwritten by tcgen05.mma (D), which"
            f" does not add to it; the product at {at.source or f'PTX line {at.line}'} wrote it,"
            " and nobody has read it since: enable-input-d (use_acc) is false once too often, or a"
            " product is not needed"
        )


def check_unread(shared: SharedMemory, start: int, size: int) -> None:
    """Raise UnreadCopy if bytes that a copy is about to overwrite were brought by an earlier copy,
    and nobody has read them since.
    """
    written, read = shared.last_reads(start, size)
    for piece in np.flatnonzero(read < written).tolist():
        event = int(written[piece])
        if event in shared.unread:
            at = shared.unread[event]
            where = "" if at is None else f" at {at.source or f'PTX line {at.line}'}"
            raise UnreadCopy(
                f"shared address {start - start % GRANULE + piece * GRANULE:#x} is overwritten by"
                f" a copy; it was brought by the copy{where}, and nobody has read it since"
                f"{shared.describe(start - start % GRANULE + piece * GRANULE)}"
            )
