"""check-conversion: quiet where both agree, loud at each seeded fault, and it names known ones."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from sites import ALL, ROOT, SUPPORT, triton_sites

triton = pytest.importorskip("triton")

import pass_corpus  # noqa: E402
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon._runtime import GluonASTSource  # noqa: E402
from up_to_ptx import compile_to_ptx  # noqa: E402

from triton_ext import LayoutError, NVMMAShared, SharedLinear, SwizzledShared  # noqa: E402
from triton_ext.compat import TRITON_VERSION  # noqa: E402
from triton_ext.layouts import nvmma_shared as nvmma  # noqa: E402
from triton_ext.layouts.linear_layout import LinearLayout  # noqa: E402
from triton_ext.layouts.triton.converted import Converted  # noqa: E402
from triton_ext.passes import (  # noqa: E402
    Compilation,
    PassCompilationError,
    PassError,
)
from triton_ext.passes import check_conversion as module  # noqa: E402
from triton_ext.passes.check_conversion import (  # noqa: E402
    CheckConversionOptions,
    ask_triton,
    check_conversion,
)

WORKER = SUPPORT / "conversion_worker.py"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Triton's cache knows a pass by the project's version, which stays while it is developed."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


# ------------------------------------------------------------------------------- no false alarm


@pytest.mark.parametrize("site", triton_sites())
def test_no_false_alarm(site):
    """Every kernel of the corpus: what differs is a known fault of the release, and named."""
    kernels = pass_corpus.corpus(site, 2 if site is None else 1).kernels
    done = subprocess.run(
        [sys.executable, str(WORKER)],
        input=json.dumps([kernel.ttgir for kernel in kernels]), capture_output=True, text=True,
        env=pass_corpus.environment(site),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    version, *found = map(json.loads, done.stdout.splitlines())
    assert len(found) == len(kernels)
    compared = [each for one in found if one["report"] for each in one["report"]["compared"]]
    assert len(compared) >= (80 if site else 600 if ALL else 330)
    for kernel, one in zip(kernels, found, strict=True):
        for severity, text in one["diagnostics"]:
            assert severity == "warning", (kernel.name, text)
            assert f"a known fault of Triton {version}" in text
    # What was not compared is no tile, or of a kind without a linear layout.
    reasons = [
        each["reason"] if "padded_shared" not in each["encoding"] else "padded"
        for one in found
        if one["report"]
        for each in one["report"]["not_compared"]
        if each["kind"] == "memdesc"
    ]
    assert {*reasons} <= {"padded"}


# ------------------------------------------------------------------------------- seeded faults

KERNEL = """\
{aliases}
#smem = #ttg.shared_memory
module attributes {{"ttg.num-ctas" = {ctas} : i32, "ttg.num-warps" = 4 : i32, \
ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32}} {{
  tt.func public @kernel() {{
{lines}
    tt.return
  }}
}}
#loc1 = loc("kernel.py":12:5)
"""


def compilation(tiles):
    """A kernel that allocates a tile of each encoding."""
    aliases = [f"#shared{i} = {encoding}" for i, (encoding, _) in enumerate(tiles)]
    lines = [
        f"    %{i} = ttg.local_alloc : () -> !ttg.memdesc<{'x'.join(map(str, shape))}xi8,"
        f" #shared{i}, #smem, mutable> loc(#loc1)"
        for i, (_, shape) in enumerate(tiles)
    ]
    text = KERNEL.format(aliases="\n".join(aliases), lines="\n".join(lines), ctas=1)
    return Compilation("kernel", 90, "ttgir", {"ttgir": text})


TILES = {
    "nvmma-128": (NVMMAShared(128, 16), (128, 128)),
    "nvmma-64": (NVMMAShared(64, 16), (64, 64)),
    "nvmma-32": (NVMMAShared(32, 32), (32, 32)),
    "nvmma-0": (NVMMAShared(0, 8), (64, 32)),
    "nvmma-transposed": (NVMMAShared(128, 16, transposed=True), (128, 64)),
    "nvmma-fp4": (NVMMAShared(128, 8, fp4_padded=True), (64, 128)),
    "nvmma-rank-3": (NVMMAShared(128, 16, rank=3), (4, 32, 64)),
    "nvmma-0-large": (NVMMAShared(0, 8), (512, 512)),
    "nvmma-cluster": (NVMMAShared(128, 16, cga_layout=((1, 0), (0, 1))), (128, 256)),
    "swizzled": (SwizzledShared(8, 2, 4, (1, 0)), (64, 64)),
    "swizzled-column": (SwizzledShared(4, 1, 8, (0, 1)), (64, 32)),
    "linear": (SharedLinear(((0, 1), (0, 2), (1, 2), (2, 0)), (), 128), (4, 4)),
}
ALL_TILES = list(TILES.values())


def diagnostics(tiles=ALL_TILES, **options):
    outcome = check_conversion(compilation(tiles), CheckConversionOptions(**options))
    return outcome.diagnostics


def test_equal_conversions_are_quiet():
    outcome = check_conversion(compilation(ALL_TILES))
    assert not outcome.diagnostics
    assert [each["verdict"] for each in outcome.report["compared"]] == ["equal"] * len(TILES)
    assert outcome.report["triton"] == triton.__version__
    assert outcome.report["compared"][0]["location"] == "kernel.py:12:5"


def of_bases(change):
    """A mutation of the offset bases that a conversion gives."""

    def mutated(found):
        return replace(found, offset=tuple(map(tuple, change(list(found.offset)))))

    return mutated


def flipped(index, dim, bit):
    def change(bases):
        basis = list(bases[index])
        basis[dim] ^= bit
        bases[index] = tuple(basis)
        return bases

    return change


def exchanged(i, j):
    def change(bases):
        bases[i], bases[j] = bases[j], bases[i]
        return bases

    return change


RESULTS = {
    "the last basis dropped": of_bases(lambda bases: bases[:-1]),
    "the first basis dropped": of_bases(lambda bases: bases[1:]),
    "a basis doubled": of_bases(lambda bases: [*bases, bases[-1]]),
    "a basis zero": of_bases(lambda bases: [*bases[:-1], (0,) * len(bases[0])]),
    "the first two exchanged": of_bases(exchanged(0, 1)),
    "the last two exchanged": of_bases(exchanged(-1, -2)),
    "the first bit flipped": of_bases(flipped(0, -1, 2)),
    "a bit of the last basis flipped": of_bases(flipped(-1, -1, 1)),
    "coordinates exchanged": of_bases(lambda bases: [basis[::-1] for basis in bases]),
    "a block basis": lambda found: replace(
        found, block=(*found.block, (0,) * len(found.offset[0]))
    ),
    "the alignment": lambda found: replace(found, alignment=found.alignment * 2),
}


@pytest.mark.parametrize("name", RESULTS)
def test_faults_in_either_result_are_found(name, monkeypatch):
    """Each of them, in each tile, on each side: the other one of the two differs."""
    ours, theirs = module.convert, type(ask_triton()).convert
    mutate = RESULTS[name]
    monkeypatch.setattr(module, "convert", lambda *case: mutate(ours(*case)))
    found = diagnostics()
    assert [each.severity for each in found] == ["error"] * len(TILES)
    monkeypatch.setattr(module, "convert", ours)
    monkeypatch.setattr(type(ask_triton()), "convert", lambda *case: mutate(theirs(*case)))
    assert [each.severity for each in diagnostics()] == ["error"] * len(TILES)


def of_atom(change):
    """A mutation of the swizzle atom: of its bases, before tiles are built from it."""

    def patch(monkeypatch):
        right = nvmma.core_matrix_linear_layout

        def wrong(*arguments):
            atom = right(*arguments)
            return LinearLayout({"offset": change(list(atom.bases["offset"]))}, atom.out_dims)

        monkeypatch.setattr(nvmma, "core_matrix_linear_layout", wrong)

    return patch


def unswizzled_atom(monkeypatch):
    right = nvmma.core_matrix_linear_layout
    monkeypatch.setattr(
        nvmma, "core_matrix_linear_layout", lambda encoding, _: right(encoding, True)
    )


def half_boxes(monkeypatch):
    monkeypatch.setattr(nvmma, "TMA_BOX_LIMIT", 128)


def boxes_by_rows_last(monkeypatch):
    """Tiling: boxes stacked along the last dimension first."""
    right = nvmma.swizzled_box

    def wrong(box, *rest):
        layout = right(box, *rest)
        return layout.transpose_outs(list(reversed(layout.out_dims)))

    monkeypatch.setattr(nvmma, "swizzled_box", wrong)


def untransposed(monkeypatch):
    right = nvmma.swizzled_box

    def wrong(box, encoding, *rest):
        flipped_encoding = replace(encoding, transposed=False)
        if encoding.transposed:
            return right((box[1], box[0]), flipped_encoding, *rest).transpose_outs(["dim1", "dim0"])
        return right(box, encoding, *rest)

    monkeypatch.setattr(nvmma, "swizzled_box", wrong)


def unpacked_fp4(monkeypatch):
    monkeypatch.setattr(nvmma, "pack_fp4", lambda column: column % 64)


def no_cluster(monkeypatch):
    monkeypatch.setattr(nvmma, "add_cluster", lambda layout, *rest: layout)


def wrong_phase(monkeypatch):
    monkeypatch.setattr(NVMMAShared, "per_phase", property(lambda encoding: 1))


def wrong_chunk(monkeypatch):
    monkeypatch.setattr(NVMMAShared, "vec", property(lambda encoding: 4))


def wrong_alignment(monkeypatch):
    monkeypatch.setattr(NVMMAShared, "alignment", property(lambda encoding: 128))


def columns_first_unswizzled(monkeypatch):
    right = nvmma.unswizzled_box

    def wrong(box, encoding):
        return right(box, replace(encoding, transposed=not encoding.transposed))

    monkeypatch.setattr(nvmma, "unswizzled_box", wrong)


def swizzled_order(monkeypatch):
    right = SwizzledShared.to_linear_layout

    def wrong(encoding, shape):
        flipped_encoding = replace(encoding, order=encoding.order[::-1])
        return right(flipped_encoding, shape)

    monkeypatch.setattr(SwizzledShared, "to_linear_layout", wrong)


# Where in our conversion, and the tiles in which it must show.
PARTS = {
    "atom: rows exchanged": (of_atom(exchanged(-1, -2)), 7),
    "atom: columns exchanged": (of_atom(exchanged(0, 1)), 7),
    "atom: a bit": (of_atom(flipped(-1, 1, 1)), 7),
    "atom: not swizzled": (unswizzled_atom, 7),
    "phase": (wrong_phase, 2),
    "chunk": (wrong_chunk, 6),
    "alignment": (wrong_alignment, 7),
    "boxes of 128 rows": (half_boxes, 1),
    "transposition": (untransposed, 1),
    "fp4": (unpacked_fp4, 1),
    "cluster": (no_cluster, 1),
    "row order without swizzle": (columns_first_unswizzled, 1),
    "order of a swizzled encoding": (swizzled_order, 2),
}


@pytest.mark.parametrize("name", PARTS)
def test_faults_in_the_parts_of_our_conversion_are_found(name, monkeypatch):
    patch, at_least = PARTS[name]
    patch(monkeypatch)
    found = diagnostics()
    assert len(found) >= at_least, [each.message for each in found]
    assert {each.severity for each in found} == {"error"}


# What Triton is asked instead, of which tile.
OTHERS = {
    "swizzle 64": ("nvmma-128", {"swizzle_byte_width": 64}),
    "swizzle 128": ("nvmma-64", {"swizzle_byte_width": 128}),
    "swizzle 0": ("nvmma-32", {"swizzle_byte_width": 0}),
    "a swizzle": ("nvmma-0", {"swizzle_byte_width": 32}),
    "width 8": ("nvmma-128", {"element_bitwidth": 8}),
    "width 32": ("nvmma-64", {"element_bitwidth": 32}),
    "transposed": ("nvmma-128", {"transposed": True}),
    "not transposed": ("nvmma-transposed", {"transposed": False}),
    "not padded": ("nvmma-fp4", {"fp4_padded": False}),
    "blocks exchanged": ("nvmma-cluster", {"cga_layout": ((0, 1), (1, 0))}),
    "a block more": ("nvmma-cluster", {"cga_layout": ((1, 0), (0, 1), (0, 0))}),
    "broadcast": ("nvmma-cluster", {"cga_layout": ((1, 0), (0, 0))}),
    "vec": ("swizzled", {"vec": 4}),
    "phases": ("swizzled", {"max_phase": 8}),
    "rows of a phase": ("swizzled", {"per_phase": 1}),
    "order": ("swizzled-column", {"order": (1, 0)}),
    "alignment": ("linear", {"alignment": 64}),
    "bases": ("linear", {"offset_bases": ((0, 1), (0, 2), (2, 0), (1, 2))}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_encoding_on_tritons_side_is_found(name, monkeypatch):
    tile, change = OTHERS[name]
    right = type(ask_triton()).convert

    def wrong(triton_side, encoding, shape):
        return right(triton_side, replace(encoding, **change), shape)

    monkeypatch.setattr(type(ask_triton()), "convert", wrong)
    [found] = diagnostics([TILES[tile]])
    assert found.severity == "error"


def test_what_the_error_says():
    """Both sides in full, the tile, the place, and what to do."""
    outcome = check_conversion(compilation([TILES["linear"]]))
    assert not outcome.diagnostics
    with pytest.MonkeyPatch.context() as patch:
        right = module.convert
        wrong = lambda *case: replace(right(*case), alignment=8)  # noqa: E731
        patch.setattr(module, "convert", wrong)
        [found] = diagnostics([TILES["linear"]])
    bases = "offset = [[0, 1], [0, 2], [1, 2], [2, 0]], block = []"
    assert f"triton_ext: {bases}, alignment = 8" in found.message
    assert f"Triton:     {bases}, alignment = 128" in found.message
    assert "a tile 4x4" in found.message
    assert str(found.location) == "kernel.py:12:5"
    assert "use another encoding" in found.help


def test_illegal_tiles_never_reach_triton(monkeypatch):
    """Triton aborts the process on some; they are listed, with the rule that they break."""
    monkeypatch.setattr(type(ask_triton()), "convert", None)
    encodings = [
        (NVMMAShared(128, 16), (4, 64)),
        (NVMMAShared(128, 16), (64, 16)),
        (NVMMAShared(128, 16), (48, 64)),
        ("#ttg.padded_shared<[64:+8] {order = [1, 0], shape = [64, 64]}>", (64, 64)),
    ]
    report = check_conversion(compilation(encodings)).report
    assert report["compared"] == []
    assert len(report["not_compared"]) == 4


def test_what_triton_refuses_is_an_error(monkeypatch):
    def refuses(*arguments):
        raise RuntimeError("no such layout")

    monkeypatch.setattr(type(ask_triton()), "convert", refuses)
    [found] = diagnostics([TILES["nvmma-128"]])
    assert "Triton:     refused: no such layout" in found.message


def test_without_triton(monkeypatch):
    ask_triton.cache_clear()
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(PassError, match="cannot ask Triton: "):
        ask_triton()


def test_nothing_to_check():
    assert check_conversion(compilation([])).report is None


def test_options():
    with pytest.raises(LayoutError, match="warn, error"):
        CheckConversionOptions(known_faults="ignore")
    assert CheckConversionOptions().output == "none"


def test_the_report_as_text():
    outcome = check_conversion(compilation([TILES["nvmma-64"], (NVMMAShared(128, 16), (4, 64))]))
    shown = check_conversion.render("kernel", outcome.report, CheckConversionOptions())
    first, second, third = shown.splitlines()
    assert first.endswith("1 compared, 0 different, 1 not compared")
    assert second.startswith("  equal: [64, 64] #ttg.nvmma_shared<")
    assert third.startswith("  not compared: [4, 64]")
    as_json = check_conversion.render(
        "kernel", outcome.report, CheckConversionOptions(format="json")
    )
    assert json.loads(as_json)["kernel"] == "kernel"


# ------------------------------------------------------------------------------- known faults


@gluon.jit
def transposes(o_ptr, LAYOUT: gl.constexpr, REGISTERS: gl.constexpr):
    """A tile in a layout that the release converts wrongly."""
    tile = gl.allocate_shared_memory(gl.float32, [64, 64], LAYOUT)
    rows = gl.arange(0, 64, gl.SliceLayout(1, REGISTERS))[:, None]
    columns = gl.arange(0, 64, gl.SliceLayout(0, REGISTERS))[None, :]
    tile.store((rows * 64 + columns).to(gl.float32))
    gl.store(o_ptr + rows * 64 + columns, tile.load(REGISTERS))


@gluon.jit
def copies(o_ptr, LAYOUT: gl.constexpr, REGISTERS: gl.constexpr):
    """The same with rank 3."""
    tile = gl.allocate_shared_memory(gl.float32, [2, 64, 64], LAYOUT)
    tile.store(gl.full([2, 64, 64], 1.0, gl.float32, REGISTERS))
    gl.store(o_ptr, gl.sum(gl.sum(gl.sum(tile.load(REGISTERS), 2), 1), 0))


IGNORED = "swizzle 0: `transposed` is ignored"
PERMUTED = "swizzle 0, transposed, rank 3 to 5"
KERNELS = {
    # name: the kernel, the layout, the fault of 3.7, that of later releases
    "rank 2": (transposes, gl.NVMMASharedLayout(0, 32, 2, transposed=True), IGNORED, None),
    "rank 3": (copies, gl.NVMMASharedLayout(0, 32, 3, transposed=True), IGNORED, PERMUTED),
}
REGISTERS = {
    2: gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0]),
    3: gl.BlockedLayout([1, 1, 4], [1, 4, 8], [1, 4, 1], [2, 1, 0]),
}


def compile_faulty(kernel, layout, passes):
    source = GluonASTSource(
        kernel,
        {"o_ptr": "*fp32", "LAYOUT": "constexpr", "REGISTERS": "constexpr"},
        {"LAYOUT": layout, "REGISTERS": REGISTERS[layout.rank]},
    )
    return compile_to_ptx(source, passes, arch=90)


def fault_of(name):
    """The kernel, its layout, and the fault of this release that it has."""
    kernel, layout, early, late = KERNELS[name]
    return kernel, layout, early if TRITON_VERSION == (3, 7) else late


@pytest.mark.parametrize("name", KERNELS)
def test_known_faults_are_named(name):
    """The release that has the fault names it, at the line of the allocation in a Gluon kernel."""
    kernel, layout, fault = fault_of(name)
    if fault is None:
        _, results = compile_faulty(kernel, layout, "check-conversion{known_faults=error}")
        assert not results.diagnostics
        return
    with pytest.raises(PassCompilationError, match=re.escape(fault)) as raised:
        compile_faulty(kernel, layout, "check-conversion{known_faults=error}")
    [found] = raised.value.diagnostics
    assert f"a known fault of Triton {triton.__version__}" in found.help
    assert "triton_ext: offset = [[1, 0" in found.message
    assert found.location.file == __file__
    with open(__file__) as file:
        line = file.read().splitlines()[found.location.line - 1]
    assert "tile = gl.allocate_shared_memory" in line


def test_known_faults_warn_by_default():
    kernel, layout, fault = fault_of("rank 2")
    if fault:
        with pytest.warns(UserWarning, match="known fault"):
            _, results = compile_faulty(kernel, layout, "check-conversion")
        assert [each.severity for each in results.diagnostics] == ["warning"]
    tile = (NVMMAShared(0, 16, transposed=True, rank=3), (2, 64, 64))
    [found] = diagnostics([tile])
    assert found.severity == "warning"
    [found] = diagnostics([tile], known_faults="error")
    assert found.severity == "error"


@pytest.mark.parametrize("site", triton_sites())
def test_known_faults_of_other_releases(site):
    if site is None:
        pytest.skip("the installed release is tested above")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", __file__,
         "-k", "known_faults and not other_releases"],
        capture_output=True, text=True, cwd=ROOT, env=pass_corpus.environment(site),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert "3 passed" in done.stdout


def test_converted_is_printed_in_full():
    text = str(Converted(((0, 1), (1, 0)), ((0, 2),), 16))
    assert text == "offset = [[0, 1], [1, 0]], block = [[0, 2]], alignment = 16"
