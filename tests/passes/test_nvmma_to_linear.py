"""nvmma-to-linear: the same PTX, the same bits; what it must leave alone, and why."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from sites import ALL, SUPPORT, triton_sites

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import kernel_cases  # noqa: E402
import pass_corpus  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from up_to_ptx import compile_both_ways  # noqa: E402

import triton_ext  # noqa: E402
from triton_ext import LayoutError, NVMMAShared, nvmma_shared_to_linear_layout  # noqa: E402
from triton_ext.compat import TRITON_VERSION  # noqa: E402
from triton_ext.layouts.encodings import SharedLinear  # noqa: E402
from triton_ext.mlir.module import MlirModule  # noqa: E402
from triton_ext.passes import Compilation, Outcome, PassWarning, compiler_pass  # noqa: E402
from triton_ext.passes.nvmma_to_linear.rewrite import (  # noqa: E402
    NvmmaToLinearOptions,
    nvmma_to_linear,
)
from triton_ext.ptx.text import without_debug_lines  # noqa: E402

WORKER = SUPPORT / "both_ways_worker.py"
PASS = "nvmma-to-linear{scope=all output=none}"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Triton's cache knows a pass by the project's version, which stays while it is developed."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


# ----------------------------------------------------------------------------- the PTX, everywhere


def has_operand_to_convert(kernel):
    report = nvmma_to_linear(compilation(kernel.ttgir, kernel.arch)).report
    return bool(report and report["converted"])


def chosen_kernels(site, count):
    """Kernels of the corpus with an MMA operand to convert, of all kinds, both targets evenly."""
    found = pass_corpus.corpus(site, 2 if site is None else 1).kernels
    found = [kernel for kernel in found if has_operand_to_convert(kernel)]
    of_target = {arch: [each for each in found if each.arch == arch] for arch in (90, 100)}
    step = {arch: max(1, len(each) * 2 // count) for arch, each in of_target.items()}
    return [kernel for arch, each in of_target.items() for kernel in each[:: step[arch]]]


def changed_ptx(kernels, site, passes):
    """What the worker says of each kernel, compiled with passes; two processes."""
    options = ("num_ctas", "maxnreg", "enable_fp_fusion")
    jobs = [
        {
            "ttgir": kernel.ttgir,
            "arch": kernel.arch,
            "options": {
                name: kernel.metadata[name]
                for name in options
                if kernel.metadata.get(name) is not None
            },
            "passes": passes,
        }
        for kernel in kernels
    ]

    def work(part):
        done = subprocess.run(
            [sys.executable, str(WORKER)],
            input=json.dumps(part), capture_output=True, text=True,
            env=pass_corpus.environment(site),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        return [json.loads(line) for line in done.stdout.splitlines()[1:]]

    with ThreadPoolExecutor(2) as pool:
        halves = list(pool.map(work, (jobs[0::2], jobs[1::2])))
    return [halves[i % 2][i // 2] for i in range(len(jobs))]


@pytest.mark.parametrize("site", triton_sites())
def test_the_ptx_is_identical(site):
    """The proof, on kernels of every kind: generated bases are what the compiler means."""
    many, few = (110, 24) if ALL else (24, 12)
    count = few if site else many
    kernels = chosen_kernels(site, count)
    assert len(kernels) >= count - 10
    assert {kernel.arch for kernel in kernels} == {90, 100}
    found = changed_ptx(kernels, site, [PASS])
    errors = {
        kernel.name: each["error"]
        for kernel, each in zip(kernels, found, strict=True)
        if "error" in each
    }
    assert not errors
    assert not any(said["diagnostics"] for each in found for said in each["said"])
    differ = [
        kernel.name
        for kernel, each in zip(kernels, found, strict=True)
        if without_debug_lines(each["ptx"]) != without_debug_lines(kernel.ptx)
    ]
    assert not differ
    for each in found:
        assert each["said"][0]["report"]["converted"]


@pytest.mark.parametrize("site", triton_sites())
def test_what_is_left_alone_in_the_corpus(site):
    """Nothing of what MMAs read, in any kernel of the corpus."""
    corpus = pass_corpus.corpus(site, 2 if site is None else 1)
    remarks = set()
    for kernel in corpus.kernels:
        report = nvmma_to_linear(compilation(kernel.ttgir, kernel.arch, corpus.version)).report
        for each in report["left_alone"] if report else ():
            remarks.add(each["remark"])
        for each in report["converted"] if report else ():
            if "remark" in each:
                remarks.add(each["remark"])
    allowed = ("for its MMAs alone: it is fp4-padded",)
    assert not [remark for remark in remarks if not remark.startswith(allowed)]


# ------------------------------------------------------------------------------ the emulated GPUs

SELECTION = ("matmul-128x192", "dot-64x64x64", "dot-128x64x128", "attention-128x64-float16")
OF_EACH = 3 if ALL else 2


def emulated_cases():
    for start in SELECTION:
        found = [case for case in kernel_cases.all_cases() if case.name.startswith(start)]
        yield from found[:: max(1, len(found) // OF_EACH)][:OF_EACH]


@pytest.mark.usefixtures("no_binaries")
@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_changed_kernels_give_the_same_bits(arch):
    changed = 0
    for case in emulated_cases():
        with triton_ext.emulate(arch, cuda_on_host=True):
            before = case.run("cuda", False)
        with (
            triton_ext.emulate(arch, cuda_on_host=True),
            triton_ext.passes.enabled(PASS) as results,
        ):
            after = case.run("cuda", False)
        for a, b in zip(before, after, strict=True):
            assert torch.equal(a.double(), b.double()), case.name
        changed += any(result.report["converted"] for result in results.all)
    assert changed >= 5


# --------------------------------------------------------------------------------- the comparison


@triton.jit
def product(a, b, c, N: tl.constexpr):
    r = tl.arange(0, N)
    x = tl.load(a + r[:, None] * N + r[None, :])
    y = tl.load(b + r[:, None] * N + r[None, :])
    tl.store(c + r[:, None] * N + r[None, :], tl.dot(x, y))


def source_of_product():
    names = {"a": "*fp16", "b": "*fp16", "c": "*fp32", "N": "constexpr"}
    return ASTSource(fn=product, signature=names, constexprs={"N": 64})


@pytest.mark.parametrize("arch", [90, 100])
def test_both_ways(arch):
    compiled = compile_both_ways(source_of_product(), PASS, arch=arch)
    assert compiled.identical
    assert compiled.difference() == ""
    [result] = compiled.results.all
    assert [each["operands"] for each in result.report["converted"]] == [
        [f"{side} of ttng.{'warp_group_dot' if arch == 90 else 'tc_gen5_mma'}"] for side in "AB"
    ]
    assert triton.knobs.runtime.add_stages_inspection_hook is None


def test_both_ways_sees_a_difference():
    @compiler_pass("other-scale", after="ttgir")
    def other(compilation, options):
        changed = compilation.text.replace("dense<0.000000e+00>", "dense<1.000000e+00>")
        return Outcome(changed)

    compiled = compile_both_ways(source_of_product(), other, arch=90)
    assert not compiled.identical
    assert compiled.difference(5).count("\n") == 4


WRONG = {
    "two bases exchanged": lambda bases: [bases[1], bases[0], *bases[2:]],
    "no swizzle": lambda bases: [*bases[:7], *[(r, 0) for r, _ in bases[7:10]], *bases[10:]],
    "rows before columns": lambda bases: [*bases[3:], *bases[:3]],
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("arch", [90, 100])
def test_wrong_bases_do_not_pass(arch, wrong, monkeypatch):
    """The comparison has teeth: bases that are not the compiler's give other PTX, or none."""
    from triton_ext.passes.nvmma_to_linear import conversion as linear_conversion

    def mistaken(shape, encoding):
        layout = nvmma_shared_to_linear_layout(shape, encoding)
        bases = [tuple(basis) for basis in layout.bases["offset"]]
        if encoding.transposed:  # B alone
            return layout
        return type(layout)({"offset": WRONG[wrong](bases)}, layout.out_dims)

    monkeypatch.setattr(linear_conversion, "nvmma_shared_to_linear_layout", mistaken)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PassWarning)
        compiled = compile_both_ways(source_of_product(), PASS, arch=arch)
    refused = ["stays as it was" in each.message for each in compiled.results.diagnostics]
    assert refused == [True] or not compiled.identical


# ----------------------------------------------------------- modules: what is changed, what is not


def compilation(text, arch=90, version=None):
    metadata = {"triton_version": version} if version else {}
    return Compilation("kernel", arch, "ttgir", {"ttgir": text}, metadata)


HEADER = """\
#mma = #ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], \
instrShape = [16, 64, 16]}>
#blocked = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], \
order = [1, 0]}>
#a = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#b = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = true, elementBitWidth = 16}>
#plain = #ttg.nvmma_shared<{swizzlingByteWidth = 0, transposed = true, elementBitWidth = 16}>
#row = #ttg.nvmma_shared<{swizzlingByteWidth = 0, transposed = false, elementBitWidth = 16}>
#bar = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, \
ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @kernel(%desc: !tt.tensordesc<64x64xf16, #a>, %n: i32, %p: i1) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %true = arith.constant true
    %zero = arith.constant dense<0.000000e+00> : tensor<64x64xf32, #mma>
    %tile = arith.constant dense<0.000000e+00> : tensor<64x64xf16, #blocked>
    %bar = ttg.local_alloc : () -> !ttg.memdesc<1xi64, #bar, #smem, mutable>
"""
END = """\
    tt.return
  }
}
"""
A = "!ttg.memdesc<64x64xf16, #a, #smem, mutable>"
B = "!ttg.memdesc<64x64xf16, #b, #smem, mutable>"
DOT = "ttng.warp_group_dot {}, {}, %zero {{inputPrecision = 0 : i32}} : {} * {} ->"
DOT += " tensor<64x64xf32, #mma>"


def module(*lines):
    return HEADER + "".join(f"    {line}\n" for line in lines) + END


def dot(a, b, a_type=A, b_type=B):
    return "%d = " + DOT.format(a, b, a_type, b_type)


ALLOCS = (f"%a = ttg.local_alloc : () -> {A}", f"%b = ttg.local_alloc : () -> {B}")
LINEAR = {
    transposed: str(
        SharedLinear.from_linear_layout(
            nvmma_shared_to_linear_layout((64, 64), NVMMAShared(128, 16, transposed)), 1024
        )
    )
    for transposed in (False, True)
}


def verified(text):
    """The module through Triton's parser and verifier, and ours."""
    from triton._C.libtriton import ir
    from triton.compiler.compiler import make_backend

    from triton_ext.compat import gpu_target
    from triton_ext.passes.frame.hook import parse_module

    context = ir.context()
    ir.load_dialects(context)
    make_backend(gpu_target(90)).load_dialects(context)
    return MlirModule(str(parse_module(text, context, "nvmma-to-linear", "kernel")))


def run(text, scope="operands", version=None):
    verified(text)  # what is written here must itself be legal
    outcome = nvmma_to_linear(compilation(text, version=version), NvmmaToLinearOptions(scope=scope))
    return outcome, verified(outcome.text) if outcome.text else None


def encodings(module, name):
    """The encodings of the memory that operations of a name take and make."""
    return [
        module.memory(value).mnemonic
        for operation in module.operations
        if operation.name == name
        for value in (*operation.operands, *operation.results)
        if module.memory(value) and module.memory(value).kind == "memdesc"
    ]


def test_operands_are_converted():
    outcome, changed = run(module(*ALLOCS, dot("%a", "%b")))
    first, second = outcome.report["converted"]
    assert (first["linear"], second["linear"]) == (LINEAR[False], LINEAR[True])
    assert (first["value"], second["value"]) == ("%a", "%b")
    assert outcome.report["views"] == 0
    assert set(encodings(changed, "ttng.warp_group_dot")) == {"shared_linear"}
    # What Triton prints of the new encodings is what was written.
    printed = {
        SharedLinear.parse(changed.memory(value).encoding)
        for operation in changed.operations
        if operation.name == "ttng.warp_group_dot"
        for value in operation.operands[:2]
    }
    assert {str(each) for each in printed} == set(LINEAR.values())


def copy(target, target_type=A):
    return (
        f"ttng.async_tma_copy_global_to_local %desc[%c0, %c0] {target}, %bar, %true :"
        f" !tt.tensordesc<64x64xf16, #a>, !ttg.memdesc<1xi64, #bar, #smem, mutable>"
        f" -> {target_type}"
    )


def test_copies_see_an_nvmma_view():
    outcome, changed = run(module(*ALLOCS, copy("%a"), dot("%a", "%b")))
    assert outcome.report["views"] == 1
    assert "nvmma_shared" in encodings(changed, "ttng.async_tma_copy_global_to_local")
    assert encodings(changed, "ttg.memdesc_reinterpret") == ["shared_linear", "nvmma_shared"]


def test_other_memory_stays_unless_all_is_wanted():
    lines = (*ALLOCS, f"%c = ttg.local_alloc : () -> {A}", copy("%c"), dot("%a", "%b"))
    outcome, changed = run(module(*lines))
    assert [each["value"] for each in outcome.report["converted"]] == ["%a", "%b"]
    assert encodings(changed, "ttg.memdesc_reinterpret") == []
    outcome, _ = run(module(*lines), scope="all")
    assert [each["value"] for each in outcome.report["converted"]] == ["%a", "%b", "%c"]


VIEWS = {
    "buffers": (
        "%bufs = ttg.local_alloc : () -> !ttg.memdesc<3x64x64xf16, #a, #smem, mutable>",
        f"%a = ttg.memdesc_index %bufs[%n] : !ttg.memdesc<3x64x64xf16, #a, #smem, mutable> -> {A}",
    ),
    "transposed": (
        f"%t = ttg.local_alloc : () -> {B}",
        f"%a = ttg.memdesc_trans %t {{order = array<i32: 1, 0>}} : {B} -> {A}",
    ),
    "part": (
        "%w = ttg.local_alloc : () -> !ttg.memdesc<128x64xf16, #a, #smem, mutable>",
        "%a = ttg.memdesc_subslice %w[64, 0] : !ttg.memdesc<128x64xf16, #a, #smem, mutable> ->"
        " !ttg.memdesc<64x64xf16, #a, #smem, mutable, 128x64>",
    ),
    "reshaped": (
        "%w = ttg.local_alloc : () -> !ttg.memdesc<4x16x64xf16, #a3, #smem, mutable>",
        f"%a = ttg.memdesc_reshape %w : !ttg.memdesc<4x16x64xf16, #a3, #smem, mutable> -> {A}",
    ),
    "reinterpreted": (
        "%w = ttg.local_alloc : () -> !ttg.memdesc<64x128xi8, #row8, #smem, mutable>",
        f"%a = ttg.memdesc_reinterpret %w : !ttg.memdesc<64x128xi8, #row8, #smem, mutable> -> {A}",
    ),
    "chosen": (
        f"%x = ttg.local_alloc : () -> {A}",
        f"%y = ttg.local_alloc : () -> {A}",
        f"%a = arith.select %p, %x, %y : {A}",
    ),
    "of a branch": (
        f"%x = ttg.local_alloc : () -> {A}",
        f"%a = scf.if %p -> ({A}) {{",
        f"  scf.yield %x : {A}",
        "} else {",
        f"  %y = ttg.local_alloc : () -> {A}",
        f"  scf.yield %y : {A}",
        "}",
    ),
    "of a loop": (
        f"%x = ttg.local_alloc : () -> {A}",
        f"%y = ttg.local_alloc : () -> {A}",
        f"%a, %z = scf.for %i = %c0 to %n step %c1 iter_args(%k = %x, %l = %y) -> ({A}, {A}) : i32"
        " {",
        f"  scf.yield %l, %k : {A}, {A}",
        "}",
    ),
    "of a while": (
        f"%x = ttg.local_alloc : () -> {A}",
        f"%a = scf.while (%k = %x) : ({A}) -> {A} {{",
        f"  scf.condition(%p) %k : {A}",
        "} do {",
        f"^bb0(%l: {A}):",
        f"  scf.yield %l : {A}",
        "}",
    ),
    "of a block": (
        f"%x = ttg.local_alloc : () -> {A}",
        f"%y = ttg.local_alloc : () -> {A}",
        f"cf.cond_br %p, ^bb1(%x : {A}), ^bb1(%y : {A})",
        f"^bb1(%a: {A}):",
    ),
}
MORE = """\
#a3 = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16, \
rank = 3}>
#row8 = #ttg.nvmma_shared<{swizzlingByteWidth = 0, transposed = false, elementBitWidth = 8}>
"""


@pytest.mark.parametrize("name", VIEWS)
def test_views_and_control_flow(name):
    a_type = A if name != "part" else "!ttg.memdesc<64x64xf16, #a, #smem, mutable, 128x64>"
    outcome, changed = run(
        MORE + module(ALLOCS[1], *VIEWS[name], dot("%a", "%b", a_type)), version="3.9.0"
    )
    assert not outcome.report["left_alone"]
    assert not [each for each in outcome.report["converted"] if "remark" in each]
    assert set(encodings(changed, "ttng.warp_group_dot")) == {"shared_linear"}
    kept = {"nvmma_shared"} if name == "reinterpreted" else set()
    assert set(encodings(changed, "ttg.local_alloc")) == {"swizzled_shared", "shared_linear"} | kept


def test_partitions():
    body = (
        "ttg.warp_specialize(%a, %b)",
        "default {",
        "  ttg.warp_yield",
        "}",
        f"partition0(%x: {A}, %y: {B}) num_warps(4) {{",
        "  %acc = arith.constant dense<0.000000e+00> : tensor<64x64xf32, #mma>",
        "  %d = " + DOT.format("%x", "%y", A, B).replace("%zero", "%acc"),
        "  ttg.warp_return",
        f"}} : ({A}, {B}) -> ()",
    )
    outcome, changed = run(module(*ALLOCS, *body))
    assert len(outcome.report["converted"]) == 2
    assert set(encodings(changed, "ttg.warp_specialize")) == {"shared_linear"}
    assert set(encodings(changed, "ttng.warp_group_dot")) == {"shared_linear"}


# Memory that stays NVMMA, and is read by the MMA through a linear view, or not even that.
PART = "!ttg.memdesc<64x64xf16, #a, #smem, mutable, 128x64>"
WIDE = "!ttg.memdesc<128x64xf16, #a, #smem, mutable>"
SLICE = (
    f"%w = ttg.local_alloc : () -> {WIDE}",
    f"%s = ttg.memdesc_subslice %w[64, 0] : {WIDE} -> {PART}",
)
STORE = "ttng.async_tma_copy_local_to_global %desc[%c0, %c0] %s : !tt.tensordesc<64x64xf16, #a>, "


def test_a_part_of_a_tile_that_a_copy_reads_is_left_alone():
    text = module(ALLOCS[1], *SLICE, STORE + PART, dot("%s", "%b", PART))
    outcome, changed = run(text)
    [alone] = outcome.report["left_alone"]
    assert alone["value"] == "%w"
    assert "cannot be reinterpreted" in alone["remark"]
    assert "A of ttng.warp_group_dot is a part of a tile" in alone["remark"]
    assert encodings(changed, "ttng.warp_group_dot") == ["nvmma_shared", "shared_linear"]


def test_a_whole_tile_of_which_a_copy_reads_a_part_is_viewed():
    """A copy of a part hinders the whole allocation; the MMA reads a whole tile of it."""
    text = module(
        "%w = ttg.local_alloc : () -> !ttg.memdesc<2x128x64xf16, #a, #smem, mutable>",
        f"%v = ttg.memdesc_index %w[%n] : !ttg.memdesc<2x128x64xf16, #a, #smem, mutable> -> {WIDE}",
        f"%s = ttg.memdesc_subslice %v[64, 0] : {WIDE} -> {PART}",
        STORE + PART,
        ALLOCS[1],
        "%wide = arith.constant dense<0.000000e+00> : tensor<128x64xf32, #mma>",
        dot("%v", "%b", WIDE).replace("%zero", "%wide").replace("-> tensor<64", "-> tensor<128"),
    )
    outcome, changed = run(text)
    viewed = next(each for each in outcome.report["converted"] if each["value"] == "%w")
    assert viewed["remark"].startswith("for its MMAs alone: ttng.async_tma_copy_local_to_global")
    assert set(encodings(changed, "ttng.warp_group_dot")) == {"shared_linear"}
    assert encodings(changed, "ttg.memdesc_reinterpret") == ["nvmma_shared", "shared_linear"]


def test_a_release_that_converts_wrongly_is_let_be():
    """Triton 3.7 ignores `transposed` without a swizzle: its layout is another one."""
    plain = "!ttg.memdesc<64x64xf16, #plain, #smem, mutable>"
    text = module(ALLOCS[0], f"%b = ttg.local_alloc : () -> {plain}", dot("%a", "%b", A, plain))
    for version, left in (("3.7.1", 1), ("3.8.0", 0), ("3.9.0", 0)):
        found = nvmma_to_linear(compilation(text, version=version))
        assert len(found.report["left_alone"]) == left
        for alone in found.report["left_alone"]:
            assert "this release of Triton converts it wrongly" in alone["remark"]


def test_memory_of_functions_is_viewed():
    text = HEADER.replace("tt.func public @kernel(", f"tt.func private @f(%a: {A}, ")
    text += f"    {ALLOCS[1]}\n    {dot('%a', '%b')}\n{END}"
    outcome, changed = run(text)
    [viewed] = [each for each in outcome.report["converted"] if each["value"] == "%a"]
    assert viewed["remark"] == "for its MMAs alone: it is an argument of a function"
    assert encodings(changed, "ttg.memdesc_reinterpret") == ["nvmma_shared", "shared_linear"]


def test_unknown_operations_see_nvmma():
    """An operation that this project does not know keeps what it had."""
    text = module(*ALLOCS, dot("%a", "%b"), f"ttng.made_up %a : {A}")
    found = nvmma_to_linear(compilation(text))
    assert f"ttng.made_up %view_x0 : {A}" in found.text
    text = module(*ALLOCS, f"%c = ttng.made_up %a : {A} -> {A}", dot("%c", "%b"))
    found = nvmma_to_linear(compilation(text))
    remarks = {each["value"]: each.get("remark", "") for each in found.report["converted"]}
    assert "ttng.made_up makes it" in remarks["%c"]


def test_nothing_to_do():
    assert nvmma_to_linear(compilation(module())).report is None
    text = module(ALLOCS[0])
    assert nvmma_to_linear(compilation(text)).report is None  # no MMA reads it
    assert nvmma_to_linear(compilation(text), NvmmaToLinearOptions(scope="all")).text


def test_it_is_idempotent():
    outcome, _ = run(module(*ALLOCS, copy("%a"), dot("%a", "%b")))
    again = nvmma_to_linear(compilation(outcome.text))
    assert again.text is None


def test_the_report_as_text():
    text = module(ALLOCS[1], *SLICE, STORE + PART, dot("%s", "%b", PART))
    shown = nvmma_to_linear.render(
        "kernel", nvmma_to_linear(compilation(text)).report, NvmmaToLinearOptions()
    )
    assert shown.startswith("nvmma-to-linear: kernel: 1 converted (0 views), 1 left alone")
    assert f"-> {LINEAR[True]}" in shown
    assert "remark: ttng.async_tma_copy_local_to_global takes NVMMA encodings alone" in shown


def test_options():
    with pytest.raises(LayoutError, match="operands, all"):
        NvmmaToLinearOptions(scope="some")
    assert TRITON_VERSION >= (3, 7)
