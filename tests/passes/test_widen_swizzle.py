"""widen-swizzle: the same bits with fewer TMA copies; what must not change does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import pass_corpus  # noqa: E402
import widen_kernels  # noqa: E402
from sites import ALL, triton_sites  # noqa: E402
from widen_kernels import Case  # noqa: E402
from widen_refusals import END, HEADER, REFUSALS, SILENT, kernel  # noqa: E402

import triton_ext  # noqa: E402
from triton_ext.compat import TRITON_VERSION  # noqa: E402
from triton_ext.emulator.clients.statistics import Statistics  # noqa: E402
from triton_ext.emulator.host.gpu import EmulatedGpu  # noqa: E402
from triton_ext.passes import Compilation, ReportOptions  # noqa: E402
from triton_ext.passes.widen_swizzle.rewrite import widen_swizzle  # noqa: E402

SCHEDULES = ("eager", "lazy", "random")
PASS = "widen-swizzle{output=none}"
EVERYWHERE = [(case, arch) for case in widen_kernels.cases() for arch in case.arches]


def in_turn(number, case):
    """A case for both GPUs on one of them, but by `make oracle`: the parity of the bits of its
    number, so that of the pipelined products, whose first eight count element types and
    major-nesses in binary, each GPU has all pairs of these.
    """
    if ALL or len(case.arches) == 1:
        return case.arches
    return [case.arches[number.bit_count() % 2]]


CASES = [
    (case, arch)
    for number, case in enumerate(widen_kernels.cases())
    for arch in in_turn(number, case)
]


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """Triton's cache knows a pass by the project's version, which stays while it is developed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


def bits(tensors):
    return [tensor.cpu().contiguous().view(torch.uint8) for tensor in tensors]


def same_bits(first, second):
    return all(torch.equal(a, b) for a, b in zip(bits(first), bits(second), strict=True))


def emulated(arch, schedule="eager", **options):
    return triton_ext.emulate(arch, schedule=schedule, seed=5, cuda_on_host=True, **options)


class Compiled:
    """The files of what is compiled inside of the ``with``, in order."""

    def __enter__(self):
        self.groups = []
        self.before = triton.knobs.compilation.listener
        triton.knobs.compilation.listener = self.listen
        return self

    def listen(self, **event):
        if self.before:
            self.before(**event)
        self.groups.append(event["metadata_group"])

    def __exit__(self, *error):
        triton.knobs.compilation.listener = self.before

    def text(self, kind, index=0):
        (path,) = (path for name, path in self.groups[index].items() if name.endswith(f".{kind}"))
        return Path(path).read_text()


def tma_copies(statistics):
    """Copies from shared memory are counted twice: when they have read, and when they are done."""
    found = 0
    for opcode, number in statistics.done.items():
        if opcode.startswith(("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor")):
            found += number // 2 if ".global.shared" in opcode else number
    return found


@pytest.mark.parametrize(("case", "arch"), CASES, ids=str)
@pytest.mark.usefixtures("no_binaries")
def test_the_same_bits_with_fewer_copies(case: Case, arch, monkeypatch):
    """On several schedules (all, by `make oracle`); and the PTX and the launch are those of the
    kernel written wide.
    """
    before, after = Statistics(), Statistics()
    kept = {"check_layouts": str(case) != "reinterpret"}  # which reads fp16 as bf16
    with emulated(arch, observer=before, **kept):
        expected = case.make(*case.narrow)(arch, "cpu")
    run = case.make(*case.narrow)
    with triton_ext.passes.enabled(PASS) as results, Compiled() as changed:
        with emulated(arch, observer=after, **kept):
            found = run(arch, "cpu")
        others = []
        for schedule in SCHEDULES[1:] if ALL else [SCHEDULES[1 + CASES.index((case, arch)) % 2]]:
            with emulated(arch, schedule, **kept):
                others.append(run(arch, "cpu"))
    assert all(output.float().abs().sum() > 0 for output in expected)
    for each in (found, *others):
        assert same_bits(each, expected)

    (report, *_) = (result.report for result in results.of("widen-swizzle"))
    widened = sorted((each["from"], each["to"]) for each in report["widened"])
    assert widened == case.widened
    assert not report["left_alone"]
    if case.copies:
        assert (tma_copies(before), tma_copies(after)) == case.copies(arch)

    monkeypatch.setattr(EmulatedGpu, "launch", lambda *arguments, **options: None)
    with emulated(arch), Compiled() as written:
        case.make(*case.wide)(arch, "cpu")
    assert changed.text("ptx") == written.text("ptx")
    launches = [json.loads(each.text("json"))["tensordesc_meta"] for each in (changed, written)]
    assert launches[0] == launches[1]

    again = widen_swizzle(
        Compilation("kernel", arch, "ttgir", {"ttgir": changed.text("ttgir")}, {})
    )
    assert again.text is None


@pytest.mark.usefixtures("no_binaries")
@pytest.mark.parametrize("arch", [90, 100])
@pytest.mark.parametrize("name", ["pipelined-float16-MN-K", "pipelined-e4m3", "specialized"])
def test_verify_descriptors_accepts_them(name, arch, monkeypatch):
    monkeypatch.setattr(EmulatedGpu, "launch", lambda *arguments, **options: None)
    (case,) = (case for case in widen_kernels.cases() if case.name == name)
    with triton_ext.passes.enabled(PASS, "verify-descriptors") as results, emulated(arch):
        case.make(*case.narrow)(arch, "cpu")
    assert results.of("widen-swizzle")
    assert not results.diagnostics


@pytest.mark.usefixtures("no_binaries")
@pytest.mark.parametrize("way", ["transposed", "half", "whole"])
def test_the_report_predicts_the_wavefronts(way):
    """Moves between registers and shared memory; the emulator counts what really happens."""
    counted = []
    run = widen_kernels.through("float32", way, 32)
    for passes in ((), (PASS,)):
        statistics = Statistics()
        with triton_ext.passes.enabled(*passes) as results, emulated(90, observer=statistics):
            run(90, "cpu")
        counted.append(statistics.wavefronts)
    ((result,),) = ([each.report for each in results.of("widen-swizzle")],)
    ((widened,), ()) = (result["widened"], result["left_alone"])
    predicted = [sum(move[side] for move in widened["wavefronts"]) for side in ("before", "after")]
    assert predicted == counted
    assert predicted[1] < predicted[0]


@pytest.mark.sm90
@pytest.mark.parametrize("case", [case for case, arch in EVERYWHERE if arch == 90], ids=str)
def test_the_same_bits_on_a_gpu(case: Case):
    triton.set_allocator(
        lambda size, align, stream: torch.empty(size, dtype=torch.int8, device="cuda")
    )
    expected = case.make(*case.narrow)(90, "cuda")
    run = case.make(*case.narrow)
    with triton_ext.passes.enabled(PASS) as results:
        found = run(90, "cuda")
    assert same_bits(found, expected)
    assert all(output.float().abs().sum() > 0 for output in found)
    (report, *_) = (result.report for result in results.of("widen-swizzle"))
    assert sorted((each["from"], each["to"]) for each in report["widened"]) == case.widened


def compilation(text, arch=90):
    return Compilation("kernel", arch, "ttgir", {"ttgir": text})


def parse(text):
    """Triton's verdict on a module; only of the release whose types are written here."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    from triton_ext.passes.frame.hook import parse_module

    context = ir.context()
    ir.load_dialects(context)
    make_backend(GPUTarget("cuda", 90, 32)).load_dialects(context)
    return parse_module(text, context, "widen-swizzle", "kernel")


@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_what_must_not_change(refusal):
    """It does not, with the reason; and does, without what forbids it."""
    outcome = widen_swizzle(compilation(refusal.module()))
    assert outcome.text is None
    assert not outcome.report["widened"]
    remarks = [each["remark"] for each in outcome.report["left_alone"]]
    assert any(refusal.reason in remark for remark in remarks), remarks
    text = widen_swizzle.render("kernel", outcome.report, ReportOptions())
    assert refusal.reason in text
    control = widen_swizzle(compilation(refusal.module(forbidden=False)))
    assert control.report["widened"]
    if TRITON_VERSION >= (3, 8):
        parse(control.text)
        if refusal.parses:
            parse(refusal.module())


@pytest.mark.parametrize("name", list(SILENT))
def test_nothing_to_say(name):
    outcome = widen_swizzle(compilation(HEADER + kernel("") + SILENT[name] + END + "}\n"))
    assert outcome.text is None
    assert outcome.report is None


def test_what_a_release_gets_wrong_stays():
    """Triton 3.7 ignores `transposed` without a swizzle: its results would change."""
    body = (
        "    %t = ttg.local_alloc : () -> !ttg.memdesc<64x64xf16, #flat_t, #smem, mutable>\n"
        "    ttg.local_store %x, %t : tensor<64x64xf16, #blocked> ->"
        " !ttg.memdesc<64x64xf16, #flat_t, #smem, mutable>\n"
    )
    text = HEADER + kernel("") + body + END + "}\n"
    for version, changes in (("3.7.1", False), ("3.8.0", True), ("3.9.0", True)):
        metadata = {"triton_version": version}
        outcome = widen_swizzle(Compilation("kernel", 90, "ttgir", {"ttgir": text}, metadata))
        assert (outcome.text is not None) == changes
        assert changes or "is wrong" in outcome.report["left_alone"][0]["remark"]


def test_the_report():
    """As text: what, where, from, to, and what it gains; as JSON: the same."""
    text = next(each for each in REFUSALS if each.name == "one-descriptor").module(forbidden=False)
    outcome = widen_swizzle(compilation(text))
    lines = widen_swizzle.render("kernel", outcome.report, ReportOptions()).splitlines()
    assert lines == [
        "widen-swizzle: kernel: 1 widened, 0 left alone",
        "  ?: %tile, 64x64xf16: 32 -> 128-byte swizzle",
        "    descriptor %desc: boxes 16 -> 64 elements wide",
        "    TMA copies: 4 -> 1",
        "    wavefronts of moves: 256 -> 64",
    ]
    found = json.loads(widen_swizzle.render("kernel", outcome.report, ReportOptions(format="json")))
    assert found["widened"][0]["tma_copies"] == [
        {
            "operation": "ttng.async_tma_copy_global_to_local",
            "location": "",
            "before": 4,
            "after": 1,
        }
    ]


CHANGED_JOBS = (
    "matmul-fp16-K-MN-32-generated", "matmul-bf16-MN-MN-32-nvmma", "views-carried_buffers-bf16-32",
    "specialized-warp_specialized-bf16-64",
)  # fmt: skip
"""The kernels of the corpus (`pass_corpus.py`) that are changed, without the architecture."""
OTHER_JOBS = (
    "dot-matmul_by_pointers-fp16", "dot-tma-matmul_by_device_descriptors-fp16",
    "scaled-scaled_matmul_by_descriptors-nvfp4", "tma-gather_scatter-fp16",
)  # fmt: skip
"""Kernels for which Triton chooses the swizzle."""


@pytest.mark.parametrize("site", triton_sites())
def test_kernels_of_the_corpus(site):
    """They compile with the pass on; changed are those that should be, in a way that lasts."""
    wanted = [
        job | {"passes": [PASS]}
        for job in pass_corpus.jobs(2, pass_corpus.release_at(site))
        if job["name"].rpartition("-sm")[0] in CHANGED_JOBS + OTHER_JOBS
    ]
    found = pass_corpus.compile_jobs(wanted, site)
    assert not found.errors
    for each in found.kernels:
        name = each.name.rpartition("-sm")[0]
        said = [said["report"] for said in each.metadata.get("triton_ext", ())]
        assert bool(said) == (name in CHANGED_JOBS)
        assert all(report["widened"] and not report["left_alone"] for report in said)
        again = Compilation("again", each.arch, "ttgir", {"ttgir": each.ttgir}, each.metadata)
        assert widen_swizzle(again).text is None
