"""Legal is not the same as equal: what the hardware forbids is found where TTGIR and PTX agree."""

from __future__ import annotations

import pytest

triton = pytest.importorskip("triton")
pytest.importorskip("torch")

from pass_corpus import corpus  # noqa: E402
from ptx_corruptions import Editor  # noqa: E402
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon._runtime import GluonASTSource  # noqa: E402
from triton.experimental.gluon.language.nvidia import blackwell  # noqa: E402
from triton.experimental.gluon.language.nvidia.hopper import mbarrier  # noqa: E402
from up_to_ptx import compile_to_ptx  # noqa: E402

from triton_ext.compat import async_load  # noqa: E402
from triton_ext.hardware import alignments  # noqa: E402
from triton_ext.passes import Compilation, PassCompilationError, get_pass  # noqa: E402

VERIFY = get_pass("verify-descriptors")


@gluon.jit
def stages(desc, out, COLUMNS: gl.constexpr):
    """Two stages of one row each, the second of which begins after one row."""
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0])
    rows = gl.allocate_shared_memory(gl.float16, [2, 1, COLUMNS], desc.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    mbarrier.expect(bar, 2 * COLUMNS * 2)
    async_load(desc, [0, 0], bar, rows.index(0))
    async_load(desc, [1, 0], bar, rows.index(1))
    mbarrier.wait(bar, 0)
    found = rows.index(0).load(layout) + rows.index(1).load(layout)
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    gl.store(out + columns[None, :], found)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("columns", [16, 64])
def test_stages_of_a_pipelined_copy(columns):
    """triton#11735: 32 bytes a stage are agreed upon, and misaligned; 128 are right."""
    kind = f"tensordesc<fp16[1,{columns}],{gl.NVMMASharedLayout(0, 16, rank=2)!r}>"
    types = {"desc": kind, "out": "*fp16", "COLUMNS": "constexpr"}
    source = GluonASTSource(stages, types, {"COLUMNS": columns})
    given = source, "verify-descriptors{output=none}"
    if columns == 16:
        with pytest.raises(PassCompilationError, match="must be a multiple of 128"):
            compile_to_ptx(*given, arch=90)
    else:
        _, results = compile_to_ptx(*given, arch=90)
        assert results.of("verify-descriptors")[0].report["unproven"] == {}


@gluon.jit
def scaled(out, TYPE: gl.constexpr, FORMAT: gl.constexpr):
    """One block-scaled product of a tile that is of TYPE, and taken as FORMAT."""
    factors: gl.constexpr = blackwell.TensorMemoryScalesLayout()
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([128, 128], TYPE)
    a = gl.allocate_shared_memory(TYPE, [128, 128], layout)
    b = gl.allocate_shared_memory(gl.float8e5, [128, 128], layout)
    scales = blackwell.allocate_tensor_memory(gl.uint8, [128, 4], factors)
    scales.store(gl.full([128, 4], 127, gl.uint8, scales.get_reg_layout()))
    sums: gl.constexpr = blackwell.TensorMemoryLayout((128, 128), 1)
    acc = blackwell.allocate_tensor_memory(gl.float32, [128, 128], sums)
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(done, count=1)
    transposed = b.permute((1, 0))
    blackwell.tcgen05_mma_scaled(a, transposed, acc, scales, scales, FORMAT, "e5m2", use_acc=False)
    blackwell.tcgen05_commit(done)
    mbarrier.wait(done, 0)
    found = acc.load(acc.get_reg_layout())
    columns = gl.arange(0, 128, gl.SliceLayout(0, found.type.layout))
    rows = gl.arange(0, 128, gl.SliceLayout(1, found.type.layout))
    gl.store(out + 128 * rows[:, None] + columns[None, :], found)


@pytest.mark.parametrize(
    ("kind", "taken", "right"),
    [("float8e4nv", "e4m3", True), ("float8e4nv", "e5m2", False), ("uint8", "e5m2", True)],
)
def test_an_fp8_tile_has_one_format(kind, taken, right):
    """Gluon is told the format of a tile: one that is not its type's makes other numbers, without
    a word. Bytes may be of any."""
    constants = {"TYPE": getattr(gl, kind), "FORMAT": taken}
    types = {"out": "*fp32", **dict.fromkeys(constants, "constexpr")}
    source = GluonASTSource(scaled, types, constants)
    given = source, "verify-descriptors{output=none}"
    if right:
        compile_to_ptx(*given, arch=100)
        return
    said = "A is a tile of f8E4M3FN, and is multiplied as e5m2"
    with pytest.raises(PassCompilationError, match=said):
        compile_to_ptx(*given, arch=100)


BULK = (
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{}], [%rd99998], {}, [{}];"
)
WRONG = {
    "an address": (BULK.format("%r99998+8", 64, "%r99998"), "multiple of 16"),
    "a size": (BULK.format("%r99998", 72, "%r99998"), "multiple of 16"),
    "an mbarrier": (BULK.format("%r99998", 64, "%r99998+4"), "multiple of 8"),
    "nothing": (BULK.format("%r99998", 64, "%r99998"), ""),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_no_operation_says(what):
    """A bulk copy of the kernel's own assembly is held to the rules all the same."""
    kernel = corpus().named("matmul-bf16-K-MN-128-nvmma-sm90")
    text, rule = WRONG[what]
    editor = Editor(kernel.ptx)
    first = editor.of("mbarrier.init")[0]
    added = f"mov.b64 %rd99998, {1 << 40};\nmov.b32 %r99998, global_smem;\n{text}\n"
    changed = editor.replaced(first, lambda line: added + line)
    texts = {"ttgir": kernel.ttgir, "ptx": changed}
    outcome = VERIFY(Compilation(kernel.kernel, 90, "ptx", texts, kernel.metadata))
    assert [rule in each.message for each in outcome.diagnostics] == ([True] if rule else [])
    assert "other instructions: cp.async.bulk.shared" in outcome.report["not_looked_at"]


def test_one_list():
    """A rule names the value, and what it must be a multiple of."""
    assert alignments.BOX.broken(1024) == ""
    assert alignments.BOX.broken(0x420) == (
        "shared address 0x420 of a box must be a multiple of 128"
    )
