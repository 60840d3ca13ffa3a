"""Calls by address (tables of functions, virtual functions), and memory that threads ask for."""

from __future__ import annotations

import numpy as np
import pytest
from tcgen05_ptx import assemble

from triton_ext.emulator import run_ptx
from triton_ext.emulator.errors import (
    EmulationError,
    MemoryFault,
    SynchronizationFault,
    UnsupportedInstruction,
)

HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"
FUNCTIONS = """
.func (.param .b32 r) plus(.param .b32 a, .param .b32 b)
{ .reg .b32 %r<3>; ld.param.b32 %r0, [a]; ld.param.b32 %r1, [b]; add.u32 %r0, %r0, %r1;
  st.param.b32 [r], %r0; ret; }
.func (.param .b32 r) times(.param .b32 a, .param .b32 b)
{ .reg .b32 %r<3>; ld.param.b32 %r0, [a]; ld.param.b32 %r1, [b]; mul.lo.u32 %r0, %r0, %r1;
  st.param.b32 [r], %r0; ret; }
.func (.param .b32 r) negative(.param .b64 a)
{ .reg .b64 %d; .reg .b32 %r; ld.param.b64 %d, [a]; cvt.u32.u64 %r, %d; neg.s32 %r, %r;
  st.param.b32 [r], %r; ret; }
.global .align 8 .u64 table[3] = {plus, times, negative};
"""
KERNEL = """
.visible .entry kernel(.param .u64 out)
{
  .reg .b32 %r<8>; .reg .b64 %d<8>; .reg .pred %p<2>;
  mov.u32 %r1, %tid.x; ld.param.u64 %d1, [out];
  mul.wide.u32 %d2, %r1, 4; add.u64 %d1, %d1, %d2;
  and.b32 %r2, %r1, 1; mul.wide.u32 %d3, %r2, 8;
  mov.u64 %d4, table; add.u64 %d4, %d4, %d3; ld.global.u64 %d5, [%d4+FIRST];
  setp.ne.u32 %p1, %r1, 3;
  { .param .b32 p; .param .b32 q; .param .b32 v;
    LIST
    st.param.b32 [p], %r1; st.param.b32 [q], 7; st.param.b32 [v], 1000;
    @%p1 call (v), %d5, (p, q), WHICH;
    ld.param.b32 %r3, [v]; }
  st.global.u32 [%d1], %r3;
  ret;
}"""
PROTOTYPE = "WHICH: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _);"


def program(first: int = 0, declared: str = PROTOTYPE) -> str:
    return HEAD + FUNCTIONS + KERNEL.replace("FIRST", str(first)).replace("LIST", declared)


@pytest.mark.parametrize("declared", [PROTOTYPE, "WHICH: .calltargets times, plus;"])
@pytest.mark.parametrize("schedule", ["eager", "random"])
def test_a_table_of_functions(declared, schedule):
    """Each lane has its own function; a lane whose guard is off calls none."""
    out, lanes = np.zeros(64, np.uint32), np.arange(64)
    run_ptx(program(0, declared), grid=1, block=64, args=[out], schedule=schedule, seed=1)
    called = np.where(lanes % 2, lanes * 7, lanes + 7)
    assert (np.delete(out, 3) == np.delete(called, 3)).all()


def test_programs_assemble():
    assemble([program(0).replace("st.param.b32 [v], 1000;", "")])


@pytest.mark.parametrize(
    ("first", "declared"),
    [
        (8, PROTOTYPE),  # odd lanes call what takes other arguments
        (0, "WHICH: .calltargets plus;"),  # odd lanes call what is not among these
    ],
)
def test_an_address_of_no_function_that_fits(first, declared):
    with pytest.raises(EmulationError, match=r"the address 0x4\w+ is that of no function which"):
        run_ptx(program(first, declared), grid=1, block=64, args=[np.zeros(64, np.uint32)])


def test_recursion_is_refused_by_its_way():
    text = HEAD + (
        ".func odd(.param .b32 n);"
        ".func even(.param .b32 n)\n{ .param .b32 m; call odd, (m); ret; }"
        ".func odd(.param .b32 n)\n{ .param .b32 m; call even, (m); ret; }"
        ".visible .entry kernel() { .param .b32 m; call even, (m); ret; }"
    )
    with pytest.raises(UnsupportedInstruction, match=r"not modelled \(even -> odd -> even\)"):
        run_ptx(text, grid=1, block=1, args=[])


def test_a_kernel_that_launches_kernels_is_refused_as_such():
    text = HEAD + (
        ".extern .func (.param .b64 r) __cudaCDP2GetParameterBufferV2(.param .b64 f);"
        ".visible .entry child() { ret; }"
        ".visible .entry kernel() { .reg .b64 %rd<2>; .param .b64 f; .param .b64 r;"
        " mov.u64 %rd1, child; st.param.b64 [f], %rd1;"
        " call.uni (r), __cudaCDP2GetParameterBufferV2, (f); ret; }"
    )
    with pytest.raises(UnsupportedInstruction, match="dynamic parallelism"):
        run_ptx(text, kernel="kernel", grid=1, block=1, args=[])


MALLOC = """
.extern .func (.param .b64 r) malloc(.param .b64 n);
.extern .func free(.param .b64 a);
.visible .entry kernel(.param .u64 out)
{
  .reg .b32 %r<8>; .reg .b64 %d<8>; .reg .pred %p<2>;
  .shared .align 8 .b64 first;
  mov.u32 %r1, %tid.x; ld.param.u64 %d1, [out];
  mul.wide.u32 %d2, %r1, 4; add.u64 %d1, %d1, %d2;
  mad.lo.u32 %r2, %r1, 4, 4; cvt.u64.u32 %d3, %r2;
  { .param .b64 p; .param .b64 v; st.param.b64 [p], %d3; call.uni (v), malloc, (p);
    ld.param.b64 %d4, [v]; }
  st.u32 [%d4], 5; add.u64 %d5, %d4, %d3; st.u32 [%d5+-4], %r1;
BODY
  st.global.u32 [%d1], %r3;
  ret;
}"""
FREE = "{ .param .b64 p; st.param.b64 [p], %d4; call.uni free, (p); }"
LOAD = "ld.u32 %r3, [%d4]; ld.u32 %r4, [%d5+-4]; add.u32 %r3, %r3, %r4;"


def allocating(body: str) -> np.ndarray:
    out = np.zeros(32, np.uint32)
    run_ptx(HEAD + MALLOC.replace("BODY", body), grid=1, block=32, args=[out])
    return out


def test_threads_have_memory_of_their_own():
    """The first has 4 bytes, of which its second store replaces the first; each other 4 more."""
    lanes = np.arange(32)
    expected = np.where(lanes == 0, 0, 5 + lanes)
    assert (allocating(LOAD + FREE) == expected).all()
    assert (allocating(LOAD) == expected).all()  # nothing has to be given back
    assert (allocating(f"{FREE} mov.b64 %d4, 0; {FREE} mov.b32 %r3, 3;") == 3).all()


@pytest.mark.parametrize(
    ("body", "fault", "said"),
    [
        (FREE + FREE, MemoryFault, "which malloc did not give, or which was freed"),
        ("add.u64 %d4, %d4, 1;" + FREE, MemoryFault, "which malloc did not give"),
        ("mov.b64 %d4, %d1;" + FREE, MemoryFault, "which malloc did not give"),
        (FREE + LOAD, MemoryFault, "is in no allocation"),
        ("ld.u32 %r3, [%d5];", MemoryFault, "the end of memory of malloc"),
    ],
)
def test_what_threads_do_wrong_with_it(body, fault, said):
    with pytest.raises(fault, match=said):
        allocating(body)


def test_races_in_it_are_found():
    body = (
        "setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.b64 [first], %d4; bar.sync 0;"
        "ld.shared.b64 %d6, [first]; @!%p1 st.u32 [%d6], %r1; mov.b32 %r3, 0;"
    )
    out = np.zeros(64, np.uint32)
    with pytest.raises(SynchronizationFault, match="memory of malloc"):
        run_ptx(HEAD + MALLOC.replace("BODY", body), grid=1, block=64, args=[out])


def test_memory_of_a_program_outlives_the_launch():
    from triton_ext.emulator.host.cuda.heap import Heap
    from triton_ext.emulator.host.cuda.reached import ProgramMemory

    heap = Heap()
    of_the_host = heap.allocate(64)
    address = ProgramMemory(heap, []).allocate(100)
    later = ProgramMemory(heap, [])
    assert later.locate(address, 100).size == 100
    with pytest.raises(MemoryFault, match="which malloc did not give"):
        later.free(of_the_host.start)
    later.free(address)
    with pytest.raises(MemoryFault, match="which was freed"):
        later.locate(address)
    heap.close()
