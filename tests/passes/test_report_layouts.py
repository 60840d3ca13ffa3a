"""The pass `report-layouts`: its facts against the PTX and against the emulated GPU."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections import Counter
from pathlib import Path

import pass_corpus
import pytest
from sites import installed_folder, triton_sites

from triton_ext.hardware.smem_descriptor import SmemDescriptor
from triton_ext.passes import Compilation, get_pass
from triton_ext.passes.report_layouts import layout_report
from triton_ext.passes.shared_accesses import shared_allocations
from triton_ext.passes.value_layouts import alignment_of, parsed_encoding
from triton_ext.ptx.listing import list_instructions
from triton_ext.render.report_page import report_html
from triton_ext.render.report_text import report_text

SCHEMA = json.loads(
    (installed_folder("triton_ext.passes") / "layout_report.schema.json").read_text()
)


def compilation(kernel: pass_corpus.Compiled, *, ptx: bool = True) -> Compilation:
    texts = {"ttgir": kernel.ttgir} | ({"ptx": kernel.ptx} if ptx else {})
    stage = "ptx" if ptx else "ttgir"
    return Compilation(kernel.kernel, kernel.arch, stage, texts, kernel.metadata)


KERNELS = (
    "matmul-fp16-K-MN-128", "matmul_by_pointers-fp16", "descriptors-stages4", "attention-shared-64",
    "attention_by_descriptors", "e4m3-e4m3-32", "rank-3", "gather_scatter", "descriptor_reduce",
    "views-transpose-b", "warp_specialized", "pair_matmul", "through_shared-padded", "mma_sync",
    "layer_norm", "tensor_memory_copy",
)  # fmt: skip


@functools.cache
def reports(site: Path | None) -> list[tuple[pass_corpus.Compiled, dict]]:
    """Kernels of the corpus that a release compiles, and the pass's reports of them."""
    found = pass_corpus.corpus(site, 2 if site is None else 1)
    first = {job["name"] for job in pass_corpus.jobs(1)}
    chosen = [
        kernel
        for kernel in found.kernels
        if kernel.name in first and any(part in kernel.name for part in KERNELS)
    ]
    assert len(chosen) >= 18, found.errors
    return [(kernel, layout_report(compilation(kernel))) for kernel in chosen]


def moves(report):
    return [move for value in report["values"] for move in value["moves"]]


# ---------------------------------------------------------------------- against the compiled PTX

WIDTHS = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}


def access_of(opcode: str) -> tuple[str, int] | None:
    """(instruction, bytes for a thread) of a shared-memory access in PTX."""
    if opcode.startswith(("ldmatrix", "stmatrix")):
        trans = ".trans" if ".trans" in opcode else ""
        return opcode[:8] + trans, 4 * int(re.search(r"\.x(\d)", opcode)[1])
    if opcode.startswith(("ld.shared", "st.shared")):
        vector = re.search(r"\.v(\d)", opcode)
        width = WIDTHS[re.search(r"\.[a-z]+(\d+)$", opcode)[1]]
        return opcode[:9], width * (int(vector[1]) if vector else 1)
    return None


def predicted_accesses(kernel: pass_corpus.Compiled) -> Counter:
    found: Counter = Counter()
    for value in shared_allocations(compilation(kernel).ttgir, kernel.arch):
        for use in value.moves:
            move = use.planned
            assert move is not None, use.reason
            name = move.instruction + (".trans" if move.trans else "")
            found[name, move.access_bytes] += move.pattern.instructions
    return found


def check_instructions(site):
    """As many of each kind and width as predicted; more come from conversions and reductions."""
    compared = Counter()
    for kernel, _ in reports(site):
        wanted = predicted_accesses(kernel)
        module = compilation(kernel).ptx
        found = Counter(
            access
            for function in module.kernels
            for instruction in function.instructions
            if (access := access_of(instruction.opcode))
        )
        for access, count in wanted.items():
            assert found[access] >= count, (kernel.name, access, count, found)
            compared[access[0]] += count
    assert set(compared) >= {"st.shared", "ld.shared", "stmatrix", "ldmatrix"}
    assert sum(compared.values()) > 100


def check_lines(site):
    """At the line of each conversion, the PTX has what is predicted."""
    ways, verdicts = Counter(), Counter()
    for kernel, report in reports(site):
        of_conversions = {
            (each["location"]["file"], each["location"]["line"])
            for each in report["conversions"]
            if each["location"]
        }
        assert not any(each["error"] for each in report["conversions"]), kernel.name
        ways.update(each["conversion"]["way"] for each in report["conversions"])
        for line in report["lines"]:
            if tuple(line["location"].values()) in of_conversions:
                assert line["agrees"] is not False, (kernel.name, line)
            verdicts[line["agrees"]] += 1
    assert ways["shared memory"] >= 3
    assert ways["nothing"] >= 3
    assert verdicts[True] > 5 * verdicts[False]


def check_descriptors(site):
    """Each descriptor that the PTX says is derived from an operand, but for its start address."""
    compared = 0
    for kernel, report in reports(site):
        derived = [
            SmemDescriptor.decode(int(mma["descriptor"], 16), kernel.arch)
            for value in report["values"]
            for mma in value["mmas"]
            if mma["descriptor"]
        ]
        for listed in list_instructions(compilation(kernel).ptx):
            if not listed.instruction.opcode.startswith(("wgmma.mma", "tcgen05.mma")):
                continue
            for operand in ("A", "B"):
                values = listed.values.get(operand)
                if not isinstance(values, dict) or "descriptor" not in values:
                    continue
                own = SmemDescriptor.decode(int(values["descriptor"], 16), kernel.arch)
                assert any(
                    own.swizzle_byte_width == each.swizzle_byte_width
                    and own.stride_byte_offset == each.stride_byte_offset
                    for each in derived
                ), (kernel.name, str(listed.instruction))
                compared += 1
        listed_mmas = sum(
            mma["count"] for mma in report["ptx_mmas"] if "mma" in mma["opcode"].split("::")[0]
        )
        ptx_mmas = len(
            re.findall(r"^\s*(?:@\S+ )?(?:wgmma\.mma_async|tcgen05\.mma)", kernel.ptx, re.M)
        )
        assert listed_mmas == ptx_mmas, kernel.name
    assert compared > 50


def check_boxes(site):
    """A TMA copy of n boxes is n instructions, or one in a loop over n (of a gather: over rows)."""
    compared = 0
    for kernel, report in reports(site):
        copies = [
            copy
            for value in report["values"]
            for copy in value["copies"]
            if copy["direction"] in ("load", "store", "reduce")
        ]
        if not copies or report["blocks_of_cluster"] > 1:
            continue
        assert not any(copy["error"] for copy in copies), kernel.name
        found = len(re.findall(r"cp\.(?:reduce\.)?async\.bulk\.tensor", kernel.ptx))
        gathers = len(re.findall(r"tile::(?:gather|scatter)4", kernel.ptx))
        # A warp's lanes may each issue a box: then there is one instruction for several.
        least = len(copies)
        most = sum(copy["boxes"] for copy in copies)
        assert least <= found - gathers <= most, (kernel.name, least, found - gathers, most)
        compared += 1
    assert compared >= 5


def check_bytes(site):
    """Triton lays values over each other if they are not alive at once, and adds scratch memory."""
    exact = 0
    for kernel, report in reports(site):
        shared = report["shared"]
        largest = max((value["bytes"] for value in report["values"]), default=0)
        assert shared["bytes"] == kernel.metadata["shared"]
        assert shared["bytes"] >= largest, kernel.name
        exact += 0 < shared["bytes"] == shared["values_bytes"]
        assert not any(value["error"] for value in report["values"]), kernel.name
    assert exact >= 3


@pytest.mark.parametrize("site", triton_sites())
def test_the_facts_are_those_of_the_compiled_kernels(site):
    check_instructions(site)
    check_lines(site)
    check_descriptors(site)
    check_boxes(site)
    check_bytes(site)


# ----------------------------------------------------------------------- against the emulated GPU

LAYOUTS = ("rows", "swizzled", "swizzled-columns", "padded", "linear", "nvmma0", "nvmma64")


@functools.cache
def ran(layout: str, dtype: str, way: str, arch: str):
    """The report of a kernel that stores a tile and loads it, and what the emulated GPU counted."""
    import corpus_gluon_kernels

    import triton_ext
    from triton_ext import passes
    from triton_ext.emulator.clients.statistics import Statistics

    counted = Statistics()
    with (
        triton_ext.emulate(arch, observer=counted),
        passes.enabled("report-layouts{output=none ptx=false}") as results,
    ):
        corpus_gluon_kernels.through_shared(layout, dtype, (64, 64), way)
    (result,) = results.of("report-layouts")
    return result.report, counted


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("way", ["transposed", "half", "columns"])
def test_the_predicted_wavefronts_are_what_the_emulated_gpu_counts(dtype, way):
    pytest.importorskip("triton")
    conflicts = 0
    for layout, arch in itertools.product(LAYOUTS, ("sm_90", "sm_100")):
        if (layout, way) == ("linear", "half"):  # Triton does not cut a swizzle
            continue
        if arch == "sm_100" and layout not in ("swizzled", "nvmma64"):
            continue
        report, counted = ran(layout, dtype, way, arch)
        found = moves(report)
        assert len(found) == 2
        assert not any(move["error"] for move in found)
        ideal = sum(move["ideal_wavefronts"] for move in found)
        wavefronts = sum(move["wavefronts"] for move in found)
        assert (wavefronts, ideal) == (counted.wavefronts, counted.ideal_wavefronts), layout
        conflicts += wavefronts > ideal
    assert conflicts >= 2


# ------------------------------------------------------------------------------------ its forms


@pytest.fixture(scope="module")
def validator():
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    return jsonschema.Draft202012Validator(SCHEMA)


def test_the_json_is_as_the_schema_says(validator):
    for kernel, report in reports(None):
        validator.validate(json.loads(json.dumps(report)))
        bare = layout_report(compilation(kernel, ptx=False))
        validator.validate(bare)
        assert bare["ptx_mmas"] is None
        assert {**bare, "ptx_mmas": report["ptx_mmas"], "lines": report["lines"]} == report


def named(part: str):
    return next((kernel, report) for kernel, report in reports(None) if part in kernel.name)


def test_the_text_says_the_most_important_first():
    kernel, report = named("matmul-fp16-K-MN-128-generated-sm90")
    lines = report_text(report).splitlines()
    shared = kernel.metadata["shared"]
    assert lines[0] == "matmul_sm90: sm_90, 4 warps"
    assert lines[1].startswith(f"shared memory: {shared:,} of 232,448 bytes")
    sizes = [
        int(n.replace(",", ""))
        for n in re.findall(r": ([\d,]+) bytes, alignment", "\n".join(lines))
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert any("operand A, K-major, 128-byte swizzle" in line for line in lines)
    assert any("operand B, MN-major, 64-byte swizzle" in line for line in lines)
    assert any(
        re.search(r"TMA load: \d+ box(es)? of 128x64, 16384 bytes each", line) for line in lines
    )
    assert any("stmatrix" in line and "no bank conflict" in line for line in lines)


def test_conflicts_stand_at_the_top():
    report, _ = ran("rows", "float32", "transposed", "sm_90")
    lines = report_text(report).splitlines()
    assert "1 of 2 register moves with bank conflicts" in lines[2]
    assert "-way bank conflict" in lines[3]


def test_conversions_are_there():
    report = next(report for _, report in reports(None) if report["conversions"])
    text = report_text(report)
    assert re.search(r"\d+ layout conversions?: ", text)
    assert "layout conversions, and what the PTX has" in text
    assert "Layout conversions" in report_html(report)


def test_tensor_memory_is_there():
    _, report = named("matmul-fp16-K-MN-128-generated-sm100")
    (accumulator,) = report["tensor_memory"]
    assert (accumulator["columns"], accumulator["block_m"]) == (64, 128)
    assert "tensor memory: 64 columns in 1 value" in report_text(report)


def test_a_module_alone_will_do():
    kernel, _ = named("matmul-fp16-K-MN-128-generated-sm90")
    alone = Compilation("file", 90, "ttgir", {"ttgir": kernel.ttgir})
    report = get_pass("report-layouts")(alone).report
    assert report["shared"]["bytes"] is None
    assert report["shared"]["values_bytes"] > 0
    assert "of at most 232,448" in report_text(report)


def test_the_alignment_is_the_encodings_or_the_allocations():
    kernel, _ = named("matmul-fp16-K-MN-128-generated-sm90")
    for value in shared_allocations(compilation(kernel).ttgir, 90):
        assert value.alignment == alignment_of(
            value.value.definition, parsed_encoding(value.memory.encoding)
        )
        assert value.alignment in (16, 128, 256, 512, 1024)


def test_the_options():
    pass_ = get_pass("report-layouts")
    kernel, _ = named("matmul-fp16-K-MN-128-generated-sm90")
    for form in ("text", "json", "html"):
        configured = pass_.configured(format=form, ptx=False)
        outcome = pass_(compilation(kernel), configured.options)
        shown = pass_.render(kernel.kernel, outcome.report, configured.options)
        assert shown.startswith({"text": "matmul_sm90", "json": "{", "html": "<!doctype"}[form])
        assert outcome.report["ptx_mmas"] is None


def test_inside_of_triton(tmp_path):
    """One line around a kernel."""
    pytest.importorskip("triton")
    import corpus_gluon_kernels

    import triton_ext
    from triton_ext import passes

    target = tmp_path / "{kernel}.json"
    with (
        triton_ext.emulate("sm_90"),
        passes.enabled(f"report-layouts{{format=json output={target}}}"),
    ):
        corpus_gluon_kernels.through_shared("rows")
    written = (tmp_path / "through_shared_kernel.json").read_text().splitlines()
    first = json.loads(written[0])
    assert first["kernel"] == "through_shared_kernel"
    assert first["shared"]["bytes"] == 64 * 64 * 4


# --------------------------------------------------------------------------------------- the page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page(open_page, scheme):
    _, report = named("matmul-fp16-K-MN-128-generated-sm100")
    page = open_page(report_html(report), scheme=scheme)
    assert page.text_content("h1") == report["kernel"]
    tiles = [value for value in report["values"] if not value["barrier"]]
    assert page.locator("section.value").count() == len(tiles)
    assert page.locator(".bar a").count() == len(report["values"])
    page.locator("summary").first.click()
    assert page.locator("details[open] svg").first.is_visible()
    frame = page.frames[1]
    frame.wait_for_selector("#layout [data-view=tile] rect")
    assert frame.locator("form input").count() >= 2
    ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    dark = sum(map(int, re.findall(r"\d+", ground)[:3])) < 3 * 128
    assert dark == (scheme == "dark")
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 1280


def test_a_page_of_conflicts_shows_the_banks():
    report, _ = ran("rows", "float32", "transposed", "sm_90")
    text = report_html(report)
    assert "bank conflict:" in text
    assert 'class="bad passive"' in text
    assert text.count('<section class="value"') == 1
