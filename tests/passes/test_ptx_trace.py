"""verify-descriptors: what a kernel's threads store while they are traced."""

from __future__ import annotations

import pytest

from triton_ext.passes.verify_descriptors.running.ptx_trace import Tracer
from triton_ext.passes.verify_descriptors.running.thread_steps import SharedMemory
from triton_ext.passes.verify_descriptors.running.trace_end import Why
from triton_ext.ptx.parse import parse_ptx


def test_stores_are_bytes_from_the_lowest_in_order():
    memory = SharedMemory()
    memory.store(16, 4, 0x80FF0102)
    memory.store(18, 2, None)  # not known
    memory.store(19, 1, -1)
    assert memory.written == {16: [0x02], 17: [0x01], 18: [0xFF, None], 19: [0x80, None, 0xFF]}


PARTITIONS = """
.version 8.7
.target sm_90a
.extern .shared .align 16 .b8 global_smem[];
.entry kernel()
{
  .reg .b32 %r<9>; .reg .pred %p<9>;
  mov.u32 %r1, %tid.x;
  setp.eq.u32 %p1, %r1, 0;
  @!%p1 bra NEXT;
  st.shared.b32 [global_smem+16], 1;
  cp.async.bulk.commit_group;
  cp.async.bulk.commit_group;
  st.shared.b32 [global_smem+16], 2;
  ret;
NEXT:
  mov.b32 %r3, global_smem;
  add.s32 %r3, %r3, 16;
  ld.shared.b32 %r2, [%r3];
  setp.eq.u32 %p2, %r2, 2;
  @!%p2 bra NEXT;
  ret;
}
"""


@pytest.mark.parametrize(
    ("limit", "end"), [(2, Why.LONG), (3, Why.FINISHED)], ids=["cut off", "whole"]
)
def test_what_the_first_thread_would_store_later(limit, end):
    """A partition that waits for it is no less known than the first thread."""
    module = parse_ptx(PARTITIONS)
    (kernel,) = module.kernels
    commits = [each for each in kernel.instructions if "commit" in each.opcode]
    tracer = Tracer(kernel, commits, {}, module.variables)
    assert tracer.run(0, limit).end.why is end
    assert tracer.run(32, 9).end.why is end
