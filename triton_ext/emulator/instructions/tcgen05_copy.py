"""tcgen05.cp and tcgen05.shift (PTX ISA, "Tensor Memory Data Movement Instructions")."""

from __future__ import annotations

import numpy as np

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.evidence import DOCUMENT, KERNELS
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Run
from triton_ext.emulator.errors import DescriptorFault, TensorMemoryFault, UnsupportedInstruction
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.clocks import Clock
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.memory import SHARED_BASE
from triton_ext.emulator.state.tensor_memory import Cells, stamp
from triton_ext.emulator.state.tensor_memory_cells import copy_lanes
from triton_ext.emulator.units.operand_matrix import chunk_addresses, descriptor_of, unpack_codes
from triton_ext.emulator.units.tensor_core import UNIT, blocks_of, issue, tensor_core
from triton_ext.errors import LayoutError
from triton_ext.hardware.tensor_memory import WARP_LANES
from triton_ext.hardware.tensor_memory_copy import SHIFT_COLUMNS, SHIFT_LANES, copy_shape
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.ptx.forms import TensorMemoryCopy, TensorMemoryShift
from triton_ext.ptx.parse import Instruction

PACKED_BITS = 6
"""Bits of an element of ``.b6x16_p32``, the low ones of a byte of ``.b8x16`` (PTX ISA,
"Decompression of 6-bit floating point to 8-bit type", its figures)."""


@instruction("tcgen05.cp", evidence=KERNELS, but="the rarer shapes: document")
def copy(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``tcgen05.cp``: a matrix of rows of 16 or 32 bytes, in the K-major canonical layout."""
    form = modifiers.form(TensorMemoryCopy)
    group, name = form.cta_group, form.shape
    try:
        shape = copy_shape(name, form.multicast)
    except LayoutError as error:
        raise UnsupportedInstruction(str(error), at) from None
    if form.source_format not in ("", "b6x16_p32"):
        why = "of the decompressing copies, .b8x16.b6x16_p32 alone is modelled"
        raise UnsupportedInstruction(why, at)
    address = operands.address(form.address, at)
    descriptor = operands.reader(form.descriptor, "u64", at)
    lanes_written, rows = copy_lanes(name, form.multicast)
    chunks_of_row = shape.bits // 8 // CHUNK_BYTES

    def run(cta: Cta, lanes: Lanes) -> None:
        targets = lane_sets.numbers(address(cta, lanes), lanes)
        sources = lane_sets.numbers(descriptor(cta, lanes), lanes)
        for thread, target, source in zip(
            lane_sets.indices(lanes).tolist(), targets, sources, strict=True
        ):
            _issue_copy(cta, thread, target, source)

    def _issue_copy(cta: Cta, thread: int, target: int, source: int) -> None:
        lane, column = target >> 16, target & 0xFFFF
        if lane not in shape.first_lanes:
            why = f"tcgen05.cp.{name} at lane {lane}: its rows would leave tensor memory"
            raise TensorMemoryFault(why)
        wanted = descriptor_of(cta, thread, source)
        offsets = chunk_addresses(wanted, shape.rows, shape.bits // 8, 8, "K")
        unit = cta.agents.unit(UNIT)
        cells: Cells = (lanes_written + lane, slice(column, column + shape.columns))

        def work(clock: Clock) -> None:
            for block in blocks_of(cta, group):
                low, high = int(offsets.min()), int(offsets.max()) + CHUNK_BYTES
                if low < SHARED_BASE or high > block.shared.size:
                    raise DescriptorFault(
                        f"tcgen05.cp's descriptor ({'; '.join(wanted.describe()[:4])}) makes it"
                        f" read shared addresses {low:#x} to {high - 1:#x}; the block's are"
                        f" {SHARED_BASE:#x} to {block.shared.size - 1:#x}"
                    )
                chunks = block.shared.bulk_load(
                    offsets, CHUNK_BYTES, clock, unit, name="tcgen05.cp"
                )
                if form.source_format:
                    chunks = unpack_codes(chunks[:, : PACKED_BITS * CHUNK_BYTES // 8], PACKED_BITS)
                words = chunks.reshape(shape.rows, chunks_of_row * CHUNK_BYTES).view(np.uint32)
                memory = tensor_core(block).memory
                memory.columns.check(column, shape.columns, "tcgen05.cp")
                memory.check_store(cells, clock.seen, "tcgen05.cp")
                memory.poke(cells, words[rows])
                memory.note("store", cells, stamp(cta.cluster.clocks.unit_event(unit), unit))

        issue(cta, thread, group, work)

    return run


@instruction("tcgen05.shift", evidence=DOCUMENT)
def shift(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``tcgen05.shift``: 32 lanes x 8 columns; each lane but the last takes the next one's.

    PTX ISA has the shape, 31x256b, and "downwards across all the rows, except the last, by one
    row"; that rows go to the lane below in number follows from tcgen05.cp.4x256b, which writes the
    lane that is left over: the last of each warp's (CUTLASS, ``SM100_UTCCP_4dp256bit``).
    """
    form = modifiers.form(TensorMemoryShift)
    group, address = form.cta_group, operands.address(form.address, at)

    def run(cta: Cta, lanes: Lanes) -> None:
        targets = lane_sets.numbers(address(cta, lanes), lanes)
        for thread, target in zip(lane_sets.indices(lanes).tolist(), targets, strict=True):
            _issue_shift(cta, thread, target)

    def _issue_shift(cta: Cta, thread: int, target: int) -> None:
        lane, column = target >> 16, target & 0xFFFF
        if lane % WARP_LANES or lane >= 4 * WARP_LANES:
            why = f"tcgen05.shift at lane {lane}: the address must name a multiple of {WARP_LANES}"
            raise TensorMemoryFault(why)
        columns = slice(column, column + SHIFT_COLUMNS)
        source = (slice(lane, lane + SHIFT_LANES), columns)
        target_cells = (slice(lane, lane + SHIFT_LANES - 1), columns)
        unit = cta.agents.unit(UNIT)

        def work(clock: Clock) -> None:
            for block in blocks_of(cta, group):
                memory = tensor_core(block).memory
                memory.columns.check(column, SHIFT_COLUMNS, "tcgen05.shift")
                words = memory.load(source, clock.seen, "tcgen05.shift").copy()
                memory.check_store(target_cells, clock.seen, "tcgen05.shift")
                memory.poke(target_cells, words[1:])
                event = stamp(cta.cluster.clocks.unit_event(unit), unit)
                memory.note("store", target_cells, event)
                memory.note("load", source, event)

        issue(cta, thread, group, work)

    return run
