"""`break_at`: the memories of a block at a line, beside what the host put into its tensors."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from sites import SUPPORT

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon.language.nvidia.blackwell import (  # noqa: E402
    TensorMemoryLayout,
    allocate_tensor_memory,
    mbarrier,
)

import triton_ext  # noqa: E402
from triton_ext.cli import main  # noqa: E402
from triton_ext.emulator.errors import Deadlock, LaunchError, SynchronizationFault  # noqa: E402
from triton_ext.emulator.state.buffers import buffers_of, named  # noqa: E402
from triton_ext.errors import LayoutError  # noqa: E402
from triton_ext.layouts.encodings import parse_encoding  # noqa: E402

EXAMPLES = SUPPORT.parent.parent / "examples"
ENCODING = "#ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>"


def example(name, text):
    """An example, its operands, and the line of the source that has a text."""
    sys.path.insert(0, str(EXAMPLES))
    module = importlib.import_module(name)
    lines = Path(module.__file__).read_text().splitlines()
    [line] = [number for number, each in enumerate(lines, 1) if text in each]
    torch.manual_seed(0)
    a, b = torch.randn(module.M, module.K).half(), torch.randn(module.K, module.N).half()
    return module, a.numpy(), b.numpy(), f"{name}.py:{line}"


def test_tiles_of_tma_are_unswizzled():
    """At step i the ring has the tiles of steps i and i + 1: pieces of A and B, bit for bit."""
    module, a, b, place = example("hopper_matmul", "= warpgroup_mma(tile")
    found = []

    def look(stop):
        tiles = stop.tiles(np.float16)
        raw = stop.shared(tiles[0].address, (64, 64), np.float16, ENCODING)
        found.append((stop.block, stop.warps, [each.values for each in tiles], raw))
        for wrong in (lambda: stop.shared(16, (4,), np.int8), stop.tensor_memory):
            with pytest.raises(LaunchError):
                wrong()
        for tile in tiles:  # the name of an address says where its byte is in the tile
            raw_bytes = stop.shared(tile.address, (8192,), np.uint8)
            for offset in range(0, 8192, 331):
                named = re.fullmatch(
                    rf"row (\d+), byte (\d+), of the box of the TMA copy at {tile.source}",
                    stop.name(tile.address + offset),
                )
                row, byte = map(int, named.groups())
                assert raw_bytes[offset] == tile.values.view(np.uint8)[row, byte]
        assert stop.name(tiles[-1].address + 8192 + 8) == ""
        with pytest.raises(LayoutError):
            stop.shared(tiles[0].address, (64, 64), np.float16, "no layout")

    with triton_ext.emulate("sm_90", cuda_on_host=True) as gpu:
        here = gpu.break_at(place, look)
        with pytest.raises(LaunchError, match=r"kernel\.py:31"):
            gpu.break_at("hopper_matmul.py", look)
        module.main("")
    assert (here.hits, len(found)) == (4, 4)
    for step, (block, warps, tiles, raw) in enumerate(found):
        assert (block, warps) == ((0, 0, 0), [0, 1, 2, 3])
        for number in {step, min(step + 1, 3)}:
            part = slice(number * 64, number * 64 + 64)
            assert any(np.array_equal(each, a[:, part]) for each in tiles)
            assert any(np.array_equal(each, b[part]) for each in tiles)
        assert np.array_equal(raw, tiles[0])


def test_tensor_memory_holds_the_accumulator():
    module, a, b, place = example("blackwell_matmul", "values = accumulator.load(")
    seen, read = [], []

    def look(stop):
        seen.append(stop.tensor_memory(0, module.N))
        read.append([values for _, values in stop.operands()])

    with triton_ext.emulate("sm_100", cuda_on_host=True) as gpu:
        gpu.break_at(place, look)
        module.main("")
    expected = a.astype(np.float32) @ b.astype(np.float32)
    assert seen
    assert all(np.allclose(each, expected, atol=1e-2) for each in seen)
    for of_a, of_b in read:  # of the last product
        k = of_a.shape[1]
        assert np.array_equal(of_a, a[:, -k:])
        assert np.array_equal(of_b, b[-k:].T)


def command(*arguments, status=0):
    """What ``triton-ext run`` says, on both streams."""
    done = CliRunner().invoke(main, ["run", *arguments])
    assert done.exit_code == status, done.output
    return done.output


def test_buffers_have_the_kernel_s_names(tmp_path):
    """At a line, in a fault, and in a trace; and what a trace has of a copy is the copy."""
    module, a, _, place = example("hopper_matmul", "= warpgroup_mma(tile")
    stops = []
    with triton_ext.emulate("sm_90", cuda_on_host=True) as gpu:
        gpu.break_at(place, lambda stop: stops.append(dict(stop.buffers())))
        module.main("")
    assert [set(each) for each in stops[:1]] == [{"a[0]", "a[1]", "b[0]", "b[1]", "full[0]",
                                                  "full[1]"}]  # fmt: skip
    for step, each in enumerate(stops):
        assert np.array_equal(each[f"a[{step % 2}]"], a[:, 64 * step : 64 * step + 64])
    with triton_ext.emulate("sm_90", cuda_on_host=True), pytest.raises(SynchronizationFault) as at:
        module.main("few-bytes")
    assert "shared address 0x4400 (b[0][0, 0])" in str(at.value)
    script, files = str(EXAMPLES / "hopper_matmul.py"), [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    shown = command("--trace-file", str(files[0]), "--break-at", place, script)
    assert "  a[0]: 64x64 float16\n" in shown
    assert "  full[1]: phase 1 (parity 1)" in shown
    command("--trace-file", str(files[1]), script, "few-bytes", status=1)
    events = [json.loads(line) for line in files[0].read_text().splitlines()]
    loads = [each["copies"][0] for each in events if "bulk.tensor" in each["instruction"]
             and each["event"] == "instruction"]  # fmt: skip
    assert [each["coordinates"] for each in loads[::2]] == [[64 * i, 0] for i in range(4)]
    assert [each["place"].split()[1] for each in loads] == [
        f"({name}[{i % 2}][0," for i in range(4) for name in "ab"
    ]
    passed = [each["barriers"][0]["phase"] for each in events
              if each["event"] == "passes" and "mbarrier" in each["instruction"]]  # fmt: skip
    assert passed == [0, 0, 1, 1]
    compared = CliRunner().invoke(main, ["diff", *map(str, files)])
    assert compared.exit_code == 1
    assert "expects 16384 bytes" in compared.output.replace("\n", " ")
    assert "8192" in compared.output
    assert CliRunner().invoke(main, ["diff", str(files[0]), str(files[0])]).exit_code == 0


@gluon.jit
def one_after_the_other(x, y, z, N: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    smem: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    at = gl.arange(0, N, layout)
    first = gl.allocate_shared_memory(gl.float32, [N], smem)
    first.store(gl.load(x + at))
    gl.store(z + at, first.load(layout))  # one

    second = gl.allocate_shared_memory(gl.float32, [N], smem)
    second.store(gl.load(y + at))  # two
    gl.store(z + at, second.load(layout))  # three


def line_of(text, kernel=one_after_the_other):
    """The line of a kernel that has a text."""
    lines, first = inspect.getsourcelines(kernel.fn)
    [line] = [first + number for number, each in enumerate(lines) if text in each]
    return line


def test_a_buffer_has_no_values_of_another_one():
    """`second` lies where `first` lay: Triton gives memory again that nobody uses any more."""
    x, y, z = torch.arange(128.0), -torch.arange(128.0), torch.zeros(128)
    seen = []
    with triton_ext.emulate("sm_90") as gpu:
        for text in ("# one", "# two", "# three"):
            place = f"test_breakpoints.py:{line_of(text)}"
            gpu.break_at(place, lambda stop, text=text: seen.append((text, dict(stop.buffers()))))
        one_after_the_other[(1,)](x, y, z, 128)
    values = {(text, name): values for text, found in seen for name, values in found.items()}
    assert set(values) == {("# one", "first"), ("# two", "first"), ("# three", "second")}
    assert all(
        np.array_equal(each, (x if name == "first" else y).numpy())
        for (_, name), each in values.items()
    )


@gluon.jit
def two_accumulators(x, y, M: gl.constexpr, N: gl.constexpr):
    first = allocate_tensor_memory(gl.float32, [M, N], TensorMemoryLayout((M, N), 1))
    second = allocate_tensor_memory(gl.float32, [M, N], TensorMemoryLayout((M, N), 1))
    layout: gl.constexpr = first.get_reg_layout()
    row = gl.arange(0, M, gl.SliceLayout(1, layout))
    column = gl.arange(0, N, gl.SliceLayout(0, layout))
    at = row[:, None] * N + column[None, :]
    first.store(gl.load(x + at))
    second.store(gl.load(y + at))
    gl.store(x + at, first.load(layout) + second.load(layout))  # both


@pytest.mark.parametrize("rows", [64, 128])
def test_tiles_of_tensor_memory(rows):
    """Two of 64 rows share columns: 16 of every 32 lanes each (PTX ISA, "Data path layout F")."""
    rng = np.random.default_rng(0)
    x, y = (torch.from_numpy(rng.standard_normal((rows, 64), np.float32)) for _ in range(2))
    expected = {"first": x.numpy().copy(), "second": y.numpy().copy()}
    seen = []
    with triton_ext.emulate("sm_100") as gpu:
        place = f"test_breakpoints.py:{line_of('# both', two_accumulators)}"
        gpu.break_at(place, lambda stop: seen.append(dict(stop.buffers())))
        two_accumulators[(1,)](x, y, rows, 64)
    assert seen
    for found in seen:
        assert set(found) == set(expected)
        assert all(np.array_equal(found[name], expected[name]) for name in found)


def test_a_breakpoint_that_is_never_hit_says_why():
    x, z, line = torch.zeros(128), torch.zeros(128), line_of("# one")

    def emulated(*places):
        with triton_ext.emulate("sm_90") as gpu:
            for place in places:
                gpu.break_at(place, print)
            if places[1:]:
                one_after_the_other[(1,)](x, x, z, 128)

    with pytest.warns(UserWarning, match="never hit") as told:
        emulated(f"test_breakpoints.py:{line + 1}", "other_matmul.py:1")
    texts = [str(each.message) for each in told if "never hit" in str(each.message)]
    after = line_of("# two")
    assert texts[0].endswith(f"{line + 1} was never hit: no instruction is of that line;"
                             f" the nearest that have some: {line} and {after}")  # fmt: skip
    assert texts[1].endswith("no kernel has instructions of this file; those that ran are of"
                             " test_breakpoints.py")  # fmt: skip
    with pytest.warns(UserWarning, match="no kernel was launched"):
        emulated("kernel.py:31")


def test_a_line_without_code_names_its_neighbours_on_the_command_line():
    _, _, _, place = example("hopper_matmul", "= warpgroup_mma(tile")
    file, _, line = place.rpartition(":")
    script = str(EXAMPLES / "hopper_matmul.py")
    shown = command("--emulate", "sm_90", "--break-at", f"{file}:1", "--break-at", place, script)
    assert f"the breakpoint at {file}:1 was never hit: no instruction is of that line" in shown
    assert f"{line} was never hit" not in shown


def test_a_buffer_without_a_name_is_told_by_its_order():
    text = """
#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#smem = #ttg.shared_memory
module {
  tt.func public @k() {
    %0 = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !ttg.memdesc<64x64xf16, #shared, #smem, mutable> loc("k.py":9:1)
    %1 = ttg.local_alloc {allocation.offset = 8192 : i32} : () -> !ttg.memdesc<3x64x64xf16, #shared, #smem, mutable> loc("/a/k.py":14:5)
    tt.return
  }
}
"""  # noqa: E501
    found = buffers_of(text)
    assert [(each.offset, each.end) for each in found] == [(0, 8192), (8192, 8192 * 4)]
    rng = np.random.default_rng(0)
    encoding = parse_encoding(ENCODING)
    at = encoding.to_linear_layout((64, 64)).apply(offset=np.arange(4096))
    for offset in rng.integers(0, 8192 * 4, 50).tolist():
        buffer, byte = divmod(offset, 8192)
        element = ", ".join(str(int(each[byte // 2])) for each in at.values())
        which = f"buffer {buffer - 1} of allocation 2 (3x64x64xf16, k.py:14)"
        expected = which if buffer else "allocation 1 (64x64xf16, k.py:9)"
        told = named(f"shared address {1024 + offset:#x} is read", found, 1024)
        assert told == f"shared address {1024 + offset:#x} ({expected}[{element}]) is read"


@gluon.jit
def waiting():
    free = mbarrier.allocate_mbarrier()
    full = mbarrier.allocate_mbarrier(2)
    mbarrier.init(free, 1)
    for i in gl.static_range(2):
        mbarrier.init(full.index(i), 1)
    mbarrier.wait(free, 1)
    mbarrier.wait(full.index(1), 0)


def test_what_gluon_allocates_for_a_kernel_has_the_kernel_s_name():
    """`allocate_mbarrier` calls each of them bar."""
    with triton_ext.emulate("sm_90"), pytest.raises(Deadlock, match=r" \(full\[1\]\), which is in"):
        waiting[(1,)](num_warps=4)


CLUSTER_BUFFERS = """
#rows = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, CGALayout = [[1, 0]]}>
#both = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, CGALayout = [[0, 0]]}>
#one = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0], CGALayout = [[1]]}>
#smem = #ttg.shared_memory
module {
  tt.func public @k() {
    %a = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !ttg.memdesc<2x128x64xf16, #rows, #smem, mutable>
    %b = ttg.local_alloc {allocation.offset = 16384 : i32} : () -> !ttg.memdesc<64x64xf16, #both, #smem, mutable>
    %bar = ttg.local_alloc {allocation.offset = 24576 : i32} : () -> !ttg.memdesc<3x2xi64, #one, #smem, mutable>
    tt.return
  }
}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("rank", "offset", "name"),
    [(0, 128, "a[0][1, 8]"), (1, 128, "a[0][65, 8]"), (1, 8192 + 128, "a[1][65, 8]"),
     (1, 16384 + 128, "b[1, 8]"), (1, 24576 + 16, "bar[2]")],
)  # fmt: skip
def test_a_buffer_of_a_cluster_lies_in_all_blocks(rank, offset, name):
    found = buffers_of(CLUSTER_BUFFERS)
    assert [each.end for each in found] == [16384, 24576, 24600]
    address = f"shared address {(rank << 24) + 1024 + offset:#x}"
    assert named(f"{address} is read", found, 1024) == f"{address} ({name}) is read"


def test_buffers_of_a_cluster_at_a_line():
    """Each block shows its own rows of A, and the B that both have."""
    import corpus_gluon_kernels as corpus

    lines, first = inspect.getsourcelines(corpus.cluster_wgmma_kernel.fn)
    line = first + next(i for i, each in enumerate(lines) if "= warpgroup_mma(" in each)
    seen = []
    with triton_ext.emulate("sm_90") as gpu:
        gpu.break_at(f"corpus_gluon_kernels.py:{line}", lambda stop: seen.append(
            (stop.block[0], dict(stop.buffers()), stop.tiles(np.float16))))  # fmt: skip
        corpus.cluster_wgmma()
    assert {block for block, _, _ in seen} == {0, 1}
    shown = {block: (buffers, tiles) for block, buffers, tiles in seen}  # the last stop of each
    for buffers, tiles in shown.values():
        of_copies = {each.values.tobytes() for each in tiles}
        for name in "ab":
            assert buffers[name].shape == (64, 64)
            assert buffers[name].tobytes() in of_copies
    assert shown[0][0]["b"].tobytes() == shown[1][0]["b"].tobytes()


TENSOR_BUFFERS = """
#tmem = #ttng.tensor_memory_encoding<blockM = 128, blockN = 64, colStride = 1>
#half = #ttng.tensor_memory_encoding<blockM = 64, blockN = 64, colStride = 1>
#space = #ttng.tensor_memory
module {
  tt.func public @k() {
    %acc = ttng.tmem_alloc {tensor_memory_col_offset = 32 : i32, tensor_memory_row_offset = 0 : i32} : () -> !ttg.memdesc<2x256x128xf32, #tmem, #space, mutable>
    %p = ttng.tmem_alloc {tensor_memory_col_offset = 0 : i32, tensor_memory_row_offset = 0 : i32} : () -> !ttg.memdesc<128x64xf16, #tmem, #space, mutable>
    %h = ttng.tmem_alloc {tensor_memory_col_offset = 544 : i32, tensor_memory_row_offset = 16 : i32} : () -> !ttg.memdesc<64x64xf32, #half, #space, mutable>
    tt.return
  }
}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("lane", "column", "expected"),
    [
        # tiles of 128 x 64 fill 64 columns each: first down the rows, then along the columns
        *((lane, 32 + 256 * buffer + 64 * tile + column,
           f"acc[{buffer}][{tile % 2 * 128 + lane}, {tile // 2 * 64 + column}]")
          for lane, buffer, tile, column in ((0, 0, 0, 0), (17, 0, 1, 3), (127, 1, 2, 63),
                                             (64, 1, 3, 40))),
        (5, 7, "p[5, 14]"),  # two elements of 16 bits in a cell
        # 64 rows of one CTA lie in 16 of every 32 lanes (PTX ISA, "Data Path Layout F")
        *((16 + row % 16 + row // 16 * 32, 544 + 9, f"h[{row}, 9]") for row in (0, 15, 16, 63)),
    ],
)  # fmt: skip
def test_an_element_of_tensor_memory(lane, column, expected):
    found = buffers_of(TENSOR_BUFFERS)
    told = named(f"tensor memory lane {lane}, column {column} is read", found, 1024)
    assert told == f"tensor memory lane {lane}, column {column} ({expected}) is read"


# ------------------------------------------------------------------------- padded encodings


def shown(seen, stop):
    seen.append(dict(stop.buffers()))


def test_a_padded_buffer_is_shown_without_its_padding():
    """Triton's own code puts the elements to their addresses; the page reads them back."""
    import corpus_gluon_kernels as corpus
    from triton.experimental.gluon import language as gl

    kernel, shape = corpus.through_shared_kernel, (32, 64)
    lines, first = inspect.getsourcelines(kernel.fn)
    line = first + next(i for i, each in enumerate(lines) if "store_rows(o_ptr, tile.load" in each)
    x = torch.arange(32 * 64, dtype=torch.float32).reshape(shape)
    registers = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    for paddings in ([[64, 4]], [[16, 4], [64, 8]]):
        padded = gl.PaddedSharedLayout.with_identity_for(paddings, list(shape), [1, 0])
        seen = []
        with triton_ext.emulate("sm_90") as gpu:
            look = functools.partial(shown, seen)
            gpu.break_at(f"corpus_gluon_kernels.py:{line}", look)
            kernel[(1,)](
                x, torch.empty(shape), *shape, registers, registers, padded, "whole",
                **corpus.LAUNCH_OPTIONS,
            )  # fmt: skip
        assert np.array_equal(seen[-1]["tile"], x.numpy())


def test_an_address_in_padding_is_called_that():
    text = """
#shared = #ttg.padded_shared<[32:+4] {order = [1, 0], shape = [16, 32]}>
#smem = #ttg.shared_memory
module {
  tt.func public @k() {
    %a = ttg.local_alloc {allocation.offset = 0 : i32} : () -> !ttg.memdesc<16x32xf16, #shared, #smem, mutable>
    tt.return
  }
}
"""  # noqa: E501
    found = buffers_of(text)
    assert [each.end for each in found] == [1144]
    for row, column in ((0, 0), (1, 0), (5, 31), (15, 31)):
        offset = 2 * (36 * row + column)
        said = named(f"shared address {1024 + offset:#x} is read", found, 1024)
        assert f"(a[{row}, {column}])" in said
    assert "byte 66, which is padding" in named(f"shared address {1024 + 66:#x} is", found, 1024)
