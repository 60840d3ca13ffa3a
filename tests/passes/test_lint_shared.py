"""The pass `lint-shared`: seeded faults are found, clean kernels are left in peace."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

import pass_corpus
import pytest
from lint_seeds import Seed, all_seeds
from sites import ROOT, SUPPORT, triton_sites

from triton_ext.errors import LayoutError
from triton_ext.passes import Compilation, PassWarning, get_pass
from triton_ext.passes.lint_shared.lint import LintOptions, findings

SEEDS = all_seeds()


def compilation(seed: Seed) -> Compilation:
    return Compilation(seed.name, seed.arch, "llir", {"ttgir": seed.text}, seed.metadata)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.name)
def test_a_seed_is_found_and_nothing_else(seed):
    found = findings(compilation(seed))
    assert sorted(finding.kind for finding in found) == sorted(seed.kinds), found
    said = " ".join(f"{finding.message} {finding.help}" for finding in found)
    for words in seed.said:
        assert words in said
    if seed.line:
        assert found[0].location is not None
        assert (found[0].location.file, found[0].location.line) == ("seed.py", seed.line)
    for finding in found:
        assert finding.help
        assert re.search(r"\d", finding.message)


def test_there_are_enough_seeds():
    faulty = [seed for seed in SEEDS if seed.kinds]
    assert len(faulty) >= 50
    assert len({(seed.kinds, re.sub(r"-\d+|-[fbi]+\d+", "", seed.name)) for seed in faulty}) >= 25
    assert len(SEEDS) - len(faulty) >= 20
    kinds = {kind for seed in SEEDS for kind in seed.kinds}
    assert kinds == {
        "bank-conflict", "unswizzled-operand", "narrow-swizzle", "several-boxes", "padding",
        "misaligned-padding", "idle-part", "never-read", "shared-limit", "blocks-per-sm",
        "permuted",
    }  # fmt: skip


@pytest.mark.parametrize("site", triton_sites())
def test_triton_takes_every_seed(site):
    """They are legal modules, so that what is found in them can happen."""
    path = filter(None, (site and str(site), str(ROOT), os.environ.get("PYTHONPATH")))
    texts = [seed.text for seed in SEEDS]
    if site and site.name.startswith("3.7"):
        texts = [re.sub(r"tensordesc<([^>]*)>", r"tensordesc<tensor<\1>>", text) for text in texts]
    finished = subprocess.run(
        [sys.executable, str(SUPPORT / "mlir_worker.py")],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        check=True,
    )
    read = [json.loads(line) is not None for line in finished.stdout.splitlines()]
    refused = [seed.name for seed, is_read in zip(SEEDS, read, strict=True) if not is_read]
    assert refused == [], finished.stderr[-2000:]


# ------------------------------------------------------------------------ a change that is advised


def advised() -> list[Seed]:
    return [seed for seed in SEEDS if seed.kinds and set(seed.kinds) == {"bank-conflict"}]


@pytest.mark.parametrize("seed", advised(), ids=lambda seed: seed.name)
def test_the_advised_encoding_has_the_promised_wavefronts(seed):
    """The module with the encoding that the help names, as the pass sees it."""
    from triton_ext.passes.shared_accesses import shared_allocations

    (finding, *_) = findings(compilation(seed))
    promise = re.match(r"(#ttg\.\w+<\{.*?\}>) for \S+ takes (\d+) wavefronts", finding.help)
    if promise is None:
        assert re.search(r"takes \d+ wavefronts$", finding.help)
        return
    module = compilation(seed).ttgir
    (own,) = {
        value.memory.encoding for value in shared_allocations(module, 90) if not value.is_barrier
    }
    text = seed.text.replace(own, promise[1])
    if "memdesc_trans" in text:
        return
    changed = Compilation("changed", 90, "ttgir", {"ttgir": text})
    moves = [move for value in shared_allocations(changed.ttgir, 90) for move in value.moves]
    assert sum(move.planned.pattern.wavefronts for move in moves) == int(promise[2])


# --------------------------------------------------------------------------------------- options


def named(name: str) -> Compilation:
    return compilation(next(seed for seed in SEEDS if seed.name == name))


def test_the_knobs():
    few = named("half-rows-f16")  # a conflict of 2 ways, 64 wavefronts too many
    assert [found.kind for found in findings(few)] == ["bank-conflict"]
    assert findings(few, LintOptions(min_conflict=4)) == []
    assert findings(few, LintOptions(min_wavefronts=65)) == []
    assert len(findings(few, LintOptions(min_wavefronts=64))) == 1
    assert findings(named("near-the-limit"), LintOptions(near_limit=0.995)) == []
    assert findings(named("clean-200k"), LintOptions(near_limit=0.8))
    assert findings(named("two-blocks"), LintOptions(block_margin=0.0)) == []
    assert findings(named("three-blocks"), LintOptions(few_blocks=1)) == []
    with pytest.raises(LayoutError, match="no such option"):
        get_pass("lint-shared").configured(min_ways=2)


def test_the_diagnostics():
    outcome = get_pass("lint-shared")(named("stored-only"))
    (diagnostic,) = outcome.diagnostics
    assert diagnostic.severity == "warning"
    assert str(diagnostic).startswith("seed.py:1:5: warning: nothing reads the 16384 bytes")
    assert "[never-read]" in diagnostic.message
    assert "help: remove the allocation" in str(diagnostic)


def test_without_metadata_the_sum_is_not_judged():
    seed = next(seed for seed in SEEDS if seed.name == "over-the-limit")
    assert findings(Compilation("file", 90, "ttgir", {"ttgir": seed.text})) == []


# ------------------------------------------------------------------------------- compiled kernels

CORPUS = {
    # B has a swizzle of 64 bytes, or both of 32, on purpose.
    "matmul-fp16-K-MN-128-generated-sm90": {"narrow-swizzle": 1},
    "matmul-bf16-K-K-32-nvmma-sm100": {"narrow-swizzle": 2},
    # Triton turns B over through registers, since wgmma reads 8 and 32 bits K-major alone.
    "dot-case-dot-128x128x64-64-float8_e5m2-tf32-8-sm90": {"bank-conflict": 1},
    "dot-tma-matmul_by_descriptors-tf32-sm90": {"bank-conflict": 1, "several-boxes": 1},
    # 8 bytes of an accumulator of 32 bits, stored with a swizzle of 128 bytes: by half lines.
    "dot-tma-matmul_by_descriptors-int8-K-K-sm90": {"bank-conflict": 1},
    # Triton does not swizzle tiles of three dimensions well.
    "dot-batched_dot-fp16-sm90": {"bank-conflict": 4},
    "shared-mma_sync-rows-sm90": {"bank-conflict": 2},
    "shared-mma_sync-padded-sm90": {"padding": 1},
    # Tiles that are copied and not multiplied, with the swizzle that Triton gives to all.
    "simple-case-descriptor-64x208-64x128-float16-sm90": {"several-boxes": 2},
    "tma-descriptor_reduce-fp32-add-sm90": {"several-boxes": 1},
    "attention-attention-shared-128-causal-bf16-sm90": {"blocks-per-sm": 1},
    # Loaded by columns: a padding of 16 bytes a row leaves 4 rows in each bank.
    "shared-through_shared-padded-fp32-sm90": {"bank-conflict": 1},
    "attention-attention-registers-64-causal-sm90": {},
    "attention-attention_by_descriptors-64-causal-sm100": {},
    "dot-matmul_by_pointers-fp16-sm90": {},
    "simple-transpose-fp32-sm90": {},
    "views-views-transpose-b-sm90": {},
    "specialized-warp_specialized-fp16-sm100": {},
    "copies-copies-gather-sm100": {},
    "cluster-pair_matmul-fp16-sm100": {},
    "scaled-block_scaled-e2m1-e2m1-16-sm100": {},
    "shared-mma_sync-swizzled-sm90": {},
}
"""What the pass says of kernels of the corpus (support/pass_corpus.py); each was looked at."""


@pytest.mark.parametrize("site", triton_sites())
def test_what_it_says_of_compiled_kernels(site):
    corpus = pass_corpus.corpus(site, 2 if site is None else 1)
    said = {}
    for kernel in corpus.kernels:
        texts = {"ttgir": kernel.ttgir}
        own = Compilation(kernel.kernel, kernel.arch, "llir", texts, kernel.metadata)
        found = findings(own)
        assert all(finding.help and finding.location for finding in found), kernel.name
        said[kernel.name] = dict(Counter(finding.kind for finding in found))
    expected = {name: kinds for name, kinds in CORPUS.items() if name in said}
    assert {name: said[name] for name in expected} == expected
    assert len(expected) == len(CORPUS) if site is None else len(expected) >= 8, corpus.errors
    # Most kernels are well made.
    clean = [name for name, kinds in said.items() if not kinds]
    assert len(clean) > len(said) / 2


def exchanged(shared, name: str, *, count: bool = True):
    """What the pass says of a kernel that stores rows and loads columns, and what it counted."""
    import corpus_gluon_kernels as kernels
    from triton.experimental.gluon import language as gl

    import triton_ext
    from triton_ext import passes
    from triton_ext.emulator.clients.statistics import Statistics

    counted, rows = Statistics(), gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    tensors = [kernels.tensor("float32", 64, 64) for _ in range(2)]
    with (
        triton_ext.emulate("sm_90", observer=counted if count else None),
        passes.enabled(name) as results,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", PassWarning)
        kernels.through_shared_kernel[(1,)](
            *tensors, 64, 64, rows, rows, shared, "transposed", **kernels.LAUNCH_OPTIONS
        )
    return results.diagnostics, counted


def test_the_advice_keeps_its_promise_on_the_emulated_gpu():
    pytest.importorskip("triton")
    from triton.experimental.gluon import language as gl

    plain = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    (diagnostic,), before = exchanged(plain, "lint-shared")
    advice = re.search(
        r"vec = (\d+), perPhase = (\d+), maxPhase = (\d+), order = \[(\d), (\d)\].* takes (\d+)"
        r" wavefronts .* instead of (\d+)",
        diagnostic.help,
    )
    vec, per_phase, phases, *order, promised, present = map(int, advice.groups())
    assert before.wavefronts == present
    better = gl.SwizzledSharedLayout(vec, per_phase, phases, order)
    said, after = exchanged(better, "lint-shared")
    assert after.wavefronts == promised < present
    assert said == []


def test_padding_that_misaligns_fails_on_the_emulated_gpu():
    pytest.importorskip("triton")
    from triton.experimental.gluon import language as gl

    from triton_ext.emulator.errors import EmulationError

    def padded(padding: int):
        return gl.PaddedSharedLayout.with_identity_for([[64, padding]], [64, 64], [1, 0])

    with pytest.raises(EmulationError, match=r"st\.shared.*v4"):
        exchanged(padded(2), "lint-shared{min_conflict=100.0}", count=False)
    exchanged(padded(4), "lint-shared{min_conflict=100.0}")


def test_inside_of_triton():
    """A warning at the kernel's source line; filters apply."""
    pytest.importorskip("triton")
    import corpus_gluon_kernels

    import triton_ext
    from triton_ext import passes

    with (
        warnings.catch_warnings(record=True) as caught,
        triton_ext.emulate("sm_90"),
        passes.enabled("lint-shared{min_conflict=3.0}"),
    ):
        warnings.simplefilter("always")
        corpus_gluon_kernels.through_shared("rows", "float16", way="columns")
    own = [each for each in caught if issubclass(each.category, PassWarning)]
    assert own
    assert all(Path(each.filename).name == "corpus_gluon_kernels.py" for each in own)
    assert all("[bank-conflict]" in str(each.message) for each in own)
