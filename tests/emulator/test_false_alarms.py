"""What was refused once, and is right: shared variables, exits, boxes at a tensor's end."""

from __future__ import annotations

import random
import re
import subprocess

import numpy as np
import pytest
from silicon.copy_cases import INIT, SMEM, aligned, module
from triton import knobs

from triton_ext.emulator import run_ptx
from triton_ext.emulator.errors import DescriptorFault, SynchronizationFault, UninitializedRead
from triton_ext.emulator.instructions import decode
from triton_ext.emulator.state.tensor_map_memory import encode
from triton_ext.hardware.tensor_map import DataType, TensorMap
from triton_ext.ptx.parse import parse_ptx

SCHEDULES = ("eager", "lazy", "random")


# ---------------------------------------------------------------- shared variables


def drawn(seed: int) -> str:
    """Two kernels with shared variables of all kinds, of which each names some."""
    draw = random.Random(seed)

    def declared(name: str) -> str:
        return f".shared .align {draw.choice([1, 4, 8, 128])} .b8 {name}[{draw.randrange(1, 300)}];"

    module_own = [f"m{n}" for n in range(draw.randrange(4))]
    text = ".version 8.7\n.target sm_100a\n.address_size 64\n"
    text += "\n".join(map(declared, module_own)) + "\n"
    for number in range(draw.randrange(3)):
        text += f".extern .shared .align {draw.choice([1, 16, 256, 1024])} .b8 d{number}[];\n"
    for kernel in ("k", "other"):
        own = [f"{kernel}{n}" for n in range(draw.randrange(3))]
        text += f".visible .entry {kernel}() {{\n .reg .b32 %r<2>;\n"
        text += "\n".join(map(declared, own)) + "\n"
        for name in (name for name in (*module_own, *own) if draw.random() < 0.6):
            text += f" mov.u32 %r1, {name};\n st.shared.u8 [%r1], 7;\n"
        text += " ret;\n}\n"
    return text


@pytest.mark.parametrize("seed", range(12))
def test_shared_memory_takes_what_ptxas_says(seed, tmp_path):
    text = drawn(seed)
    (tmp_path / "k.ptx").write_text(text)
    command = [knobs.nvidia.ptxas.path, "-arch=sm_100a", "-v", "k.ptx", "-o", "k.cubin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    for part in done.stderr.split("Compiling entry function '")[1:]:
        said = re.search(r"(\d+) bytes smem", part)
        storage = decode(parse_ptx(text), part[: part.index("'")]).storage
        assert storage.static_smem_bytes == (int(said[1]) if said else 0), text


def test_the_last_byte_of_dynamic_shared_memory_behind_the_padding():
    """Static variables come first, and the dynamic part begins at its own alignment."""
    text = """.version 8.7
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .u64 out)
{
 .shared .align 8 .b8 mbar[8];
 .reg .b32 %r<4>;
 .reg .b64 %rd<2>;
 ld.param.u64 %rd1, [out];
 mov.u32 %r1, mbar;
 mov.u32 %r2, smem;
 st.shared.u32 [%r1], 7;
 st.shared.u8 [%r2+4095], 7;
 sub.u32 %r3, %r2, %r1;
 st.global.u32 [%rd1], %r3;
 ret;
}
"""
    out = np.zeros(1, np.uint32)
    run_ptx(text, grid=1, block=1, args=[out], dynamic_smem_bytes=4096)
    assert out[0] == 1024


# ----------------------------------------------------------------- threads that exit


EXITS = """
 mov.u32 %r50, %cluster_ctarank;
 xor.b32 %r51, %r50, 1;
 mapa.shared::cluster.u32 %r9, %r2, %r51;
 shl.b32 %r3, %r0, 2;
 add.u32 %r4, %r2, %r3;
 add.u32 %r9, %r9, %r3;
 {store} [{where}], %r0;
 setp.ge.u32 %p2, %r0, 32;
 @%p2 bra OUT;
 {barrier}
 ld.shared.u32 %r20, [%r4+128];
 mul.wide.u32 %rd3, %r0, 4;
 add.u64 %rd3, %rd3, %rd1;
 setp.ne.u32 %p3, %r50, 0;
 @%p3 bra OUT;
 st.global.u32 [%rd3], %r20;
OUT:
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("store", "where", "barrier"),
    [
        ("st.shared.u32", "%r4", "bar.sync 0;"),
        (
            "st.shared::cluster.u32",
            "%r9",
            "barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;",
        ),
    ],
)
def test_an_exit_completes_a_barrier_and_is_ordered_before_it(store, where, barrier, schedule):
    """Warps 1 to 3 store and exit; warp 0 waits for whoever is left, and reads what they stored."""
    out = np.zeros(32, np.uint32)
    body = INIT + " ld.param.u64 %rd1, [out];\n"
    body += EXITS.format(store=store, where=where, barrier=barrier)
    options = {"grid": 2, "cluster": 2, "block": 128, "args": [out]}
    text = module(".param .u64 out", body)
    run_ptx(text, **options, dynamic_smem_bytes=SMEM, schedule=schedule)
    assert (out == np.arange(32, 64)).all()
    without = text.replace(barrier, "")
    with pytest.raises((SynchronizationFault, UninitializedRead)):
        run_ptx(without, **options, dynamic_smem_bytes=SMEM, schedule=schedule)


def test_a_barrier_with_a_number_of_threads_does_not_wait_for_an_exit():
    body = INIT + " ld.param.u64 %rd1, [out];\n"
    body += EXITS.format(store="st.shared.u32", where="%r4", barrier="bar.sync 1, 32;")
    text = module(".param .u64 out", body)
    with pytest.raises((SynchronizationFault, UninitializedRead)):
        run_ptx(text, grid=1, block=128, args=[np.zeros(32, np.uint32)], dynamic_smem_bytes=SMEM)


# ------------------------------------------------------------------- a tensor's end


STORE = f"""{INIT}
 ld.param.u64 %rd1, [out];
 mov.b64 %rd2, map;
 cvta.param.u64 %rd2, %rd2;
 mul.lo.u32 %r3, %r0, 144;
 add.u32 %r4, %r2, %r3;
 mov.u32 %r5, 0;
FILL:
 shl.b32 %r6, %r5, 2;
 add.u32 %r6, %r6, %r4;
 shl.b32 %r7, %r0, 8;
 add.u32 %r7, %r7, %r5;
 st.shared.u32 [%r6], %r7;
 add.u32 %r5, %r5, 1;
 setp.lt.u32 %p2, %r5, {{words}};
 @%p2 bra FILL;
 fence.proxy.async.shared::cta;
 bar.sync 0;
 mov.u32 %r8, {{row}};
 @%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd2, {{{{0, %r8}}}}], [%r2];
 @%p1 cp.async.bulk.commit_group;
 @%p1 cp.async.bulk.wait_group 0;
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("words", "row", "right"), [(32, 0, True), (31, 0, False), (32, 28, True)])
def test_a_store_reads_no_more_of_its_box_than_the_tensor_has(words, row, right, schedule):
    """A box of 72 columns of 16 bits in a dimension of 64: nothing need have written the rest."""
    data = aligned(32 * 64, np.uint16)
    tensor = TensorMap(DataType.UINT16, (64, 32), (128,), (72, 8), global_address=data.ctypes.data)
    text = module(
        ".param .u64 out, .param .align 64 .b8 map[128]", STORE.format(words=words, row=row)
    )
    options = {"args": [data, tensor], "dynamic_smem_bytes": SMEM, "schedule": schedule}
    if not right:
        with pytest.raises(UninitializedRead):
            run_ptx(text, grid=1, block=8, **options)
        return
    run_ptx(text, grid=1, block=8, **options)
    rows = np.arange(8)[:, None] << 8 | np.arange(32)
    expected = np.zeros((32, 64), np.uint16)
    expected[row : row + 8] = rows.astype(np.uint32).view(np.uint16)[: 32 - row]
    assert (data.reshape(32, 64) == expected).all()


# ------------------------------------------------------------------ damaged maps


def test_a_map_with_any_bit_flipped_is_one_or_a_fault():
    data = aligned(1 << 14)
    good = encode(
        TensorMap(DataType.UINT8, (64, 64), (64,), (32, 32), global_address=data.ctypes.data)
    )
    text = module(
        ".param .align 64 .b8 map[128]",
        " mov.b64 %rd1, map;\n cvta.param.u64 %rd1, %rd1;\n mov.u32 %r2, 0;\n"
        " cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd1, {%r2, %r2}];",
    )
    faults = 0
    for bit in range(1024):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            run_ptx(text, grid=1, block=1, args=[bytes(damaged)], buffers=[data])
        except DescriptorFault:
            faults += 1
    assert faults > 200
