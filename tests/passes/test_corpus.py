"""The corpus of compiled kernels itself: it is complete, and every kind is in it."""

from __future__ import annotations

import re
from collections import Counter

import corpus_cache
import pytest
from sites import ALL, triton_sites

pytest.importorskip("torch")
pytest.importorskip("triton")

import pass_corpus

from triton_ext.hardware.architecture import SHARED_MEMORY_PER_BLOCK

THIRD_PARTY = pytest.mark.skipif(
    not list(pass_corpus.third_party_jobs()), reason="needs the extra oracle"
)


def corpus_at(site):
    """Some variants of each kernel by the installed release, fewer by the others."""
    return pass_corpus.corpus(site, tier=2 if site is None else 1)


def operations(ttgir):
    """How often each operation of Triton's dialects stands in a module."""
    return Counter(re.findall(r'^ *(?:%[^=]+= )?"?((?:ttng|ttg|tt|scf)\.\w+)', ttgir, re.MULTILINE))


@pytest.mark.parametrize("site", triton_sites())
def test_every_job_compiles(site):
    found = corpus_at(site)
    assert found.errors == {}
    names = [each.name for each in found.kernels]
    assert len(names) == len(set(names)) >= (40 if site else 200 if ALL else 120)
    for each in found.kernels:
        assert f"tt.func public @{each.kernel}(" in each.ttgir, each
        assert "loc(" in each.ttgir, each
        assert ".loc" in each.ptx, each
        assert f".target sm_{each.arch}a" in each.ptx, each
        assert f'ttg.target = "cuda:{each.arch}"' in each.ttgir, each
        assert each.metadata["name"] == each.kernel
        assert each.metadata["triton_version"] == found.version
        assert each.metadata["shared"] <= SHARED_MEMORY_PER_BLOCK, each
        assert f'"ttg.num-ctas" = {each.metadata["num_ctas"]} : i32' in each.ttgir, each


def test_names_and_tiers():
    jobs = pass_corpus.jobs(tier=3)
    assert len({each["name"] for each in jobs}) == len(jobs) >= 570
    assert Counter(each["arch"] for each in jobs).keys() == {90, 100}
    some = pass_corpus.jobs(tier=2)
    assert 120 <= len(some) <= 160
    few = pass_corpus.jobs(tier=1)
    assert 40 <= len(few) <= 64
    kinds = {each["kind"] for each in some}
    assert kinds == {each["kind"] for each in jobs} - {"third-party"}
    assert {each["kind"] for each in few} == kinds - {"product"}
    assert set(pass_corpus.NAMED) <= {each["name"] for each in some}


def any_of(*names):
    return lambda found, kernel: any(found[name] for name in names)


def all_of(*names):
    return lambda found, kernel: all(found[name] for name in names)


def types_of(pattern):
    return lambda found, kernel: re.search(pattern, kernel.ttgir) is not None


NVMMA = "swizzlingByteWidth = {}, transposed = {}, elementBitWidth = {}"
MMA = ("ttng.warp_group_dot", "ttng.tc_gen5_mma", "ttng.tc_gen5_mma_scaled", "tt.dot")
KINDS = {
    # what to find in a kernel, the architectures that have it, in how many of tier 3 at least
    "wgmma": (all_of("ttng.warp_group_dot"), (90,), 100),
    "wgmma with A in registers": (
        types_of(r"ttng\.warp_group_dot .*: tensor<\S+, #ttg\.dot_op<"), (90,), 5,
    ),
    "tcgen05.mma": (all_of("ttng.tc_gen5_mma"), (100,), 100),
    "tcgen05.mma with A in tensor memory": (
        types_of(r"ttng\.tc_gen5_mma .*: !ttg\.memdesc<[^,]+, [^,]+, #ttng\.tensor_memory"), (100,),
        5,
    ),
    "tcgen05.mma by two CTAs": (
        lambda found, kernel: "tcgen05.mma.cta_group::2" in kernel.ptx, (100,), 5,
    ),
    "tcgen05.mma with block scales": (all_of("ttng.tc_gen5_mma_scaled"), (100,), 15),
    "mma.sync": (all_of("tt.dot"), (90, 100), 3),
    "tcgen05.cp": (all_of("ttng.tmem_copy"), (100,), 8),
    "subslices of tensor memory": (all_of("ttng.tmem_subslice"), (100,), 4),
    "reinterpreted tensor memory": (
        types_of(r"memdesc_reinterpret .*#ttng\.tensor_memory"), (100,), 3,
    ),
    "TMA loads": (all_of("ttng.async_tma_copy_global_to_local"), (90, 100), 50),
    "TMA stores": (all_of("ttng.async_tma_copy_local_to_global"), (90, 100), 50),
    "TMA gather": (all_of("ttng.async_tma_gather"), (100,), 5),
    "TMA scatter": (all_of("ttng.async_tma_scatter"), (100,), 3),
    "TMA reduce": (all_of("ttng.async_tma_reduce"), (90, 100), 5),
    "TMA multicast": (types_of(r"async_tma_copy_global_to_local .*multicast"), (90, 100), 1),
    "TMA im2col": (types_of(r"tensordesc_im2col"), (90, 100), 1),
    "device-made descriptors": (all_of("ttng.tensormap_create"), (90, 100), 3),
    "cp.async": (all_of("ttg.async_copy_global_to_local"), (90, 100), 20),
    "several CTAs": (types_of(r'"ttg\.num-ctas" = [248] '), (90, 100), 3),
    "warp specialization": (all_of("ttg.warp_specialize"), (90, 100), 5),
    "parts of shared memory": (all_of("ttg.memdesc_subslice"), (90, 100), 3),
    "transposed shared memory": (all_of("ttg.memdesc_trans"), (90, 100), 20),
    "reshaped shared memory": (all_of("ttg.memdesc_reshape"), (90, 100), 1),
    "reinterpreted shared memory": (
        types_of(r"memdesc_reinterpret .*#smem"), (90, 100), 10,
    ),
    "memdescs carried by a loop": (
        types_of(r"scf\.for .* -> \(.*!ttg\.memdesc<[^()]*, #smem"), (90, 100), 2,
    ),
    "memdescs chosen by an if": (
        types_of(r"scf\.if .*-> \(?!ttg\.memdesc|arith\.select .*: !ttg\.memdesc"), (90, 100), 1,
    ),
    "linear layouts": (types_of(r"#ttg\.shared_linear"), (90, 100), 12),
    "padded layouts": (types_of(r"#ttg\.padded_shared"), (90, 100), 1),
    "swizzled layouts": (
        types_of(r"#ttg\.swizzled_shared<\{vec = \d+, perPhase = \d+, maxPhase = [48]"),
        (90, 100), 2,
    ),
    "no MMA": (lambda found, kernel: not any_of(*MMA)(found, kernel), (90, 100), 50),
    "no shared memory": (lambda found, kernel: not kernel.metadata["shared"], (90, 100), 5),
    "reductions": (all_of("tt.reduce"), (90, 100), 10),
    "scans": (all_of("tt.scan"), (90, 100), 3),
    "a histogram": (all_of("tt.histogram"), (90,), 1),
    "atomics": (any_of("tt.atomic_rmw"), (90, 100), 1),
    "two products in one loop, a softmax between": (
        lambda found, kernel: any_of("ttng.warp_group_dot", "ttng.tc_gen5_mma")(found, kernel)
        and kernel.kind == "attention",
        (90, 100), 15,
    ),
    **{
        f"operands of {name} bits with {width} bytes of swizzle, transposed: {flag}": (
            types_of(NVMMA.format(width, str(flag).lower(), name)), (90, 100), 1,
        )
        for name, width, flag in (
            (8, 64, False), (8, 128, False), (8, 128, True), (16, 32, False), (16, 32, True),
            (16, 64, False), (16, 64, True), (16, 128, False), (16, 128, True), (32, 64, False),
            (32, 128, False), (32, 128, True),
        )
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def counted():
    return [(operations(each.ttgir), each) for each in pass_corpus.corpus().kernels]


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind, counted):
    has, archs, least = KINDS[kind]
    if not ALL:
        least = max(1, least // pass_corpus.ONE_OF)
    for arch in archs:
        found = sum(has(counts, each) for counts, each in counted if each.arch == arch)
        assert found >= least, f"sm_{arch}: {found}"


@pytest.mark.parametrize("site", triton_sites())
def test_what_a_release_cannot_do(site):
    """A job says what release it needs: the earlier ones do fail."""
    late = [each for each in pass_corpus.jobs() if "since" in each]
    assert late
    release = pass_corpus.release_at(site)
    early = [each for each in late if tuple(each["since"]) > release]
    if early:
        found = pass_corpus.compile_jobs(early, site)
        assert found.errors.keys() == {each["name"] for each in early}


@pytest.fixture(scope="module")
def some():
    """A kernel, alone and with a pass; and jobs that fail."""
    good, *_ = pass_corpus.simple_jobs()
    changes = {
        "reported": {"passes": ["report-layouts"]},
        "wrong": {"arguments": {"dtype": "float33"}},
        "missing": {"kernel": "nowhere"},
        "nothing": {"kernel": "tensor", "arguments": {"dtype": "int8"}},
    }
    jobs = [good | {"name": name} | change for name, change in changes.items()]
    return good, pass_corpus.compile_jobs([*jobs, good])


def test_a_job_that_fails_does_not_hinder_others(some):
    good, found = some
    assert [each.name for each in found.kernels] == ["reported", good["name"]]
    assert found.named(good["name"]).kind == good["kind"]
    assert found.errors.keys() == {"wrong", "missing", "nothing"}
    assert "float33" in found.errors["wrong"]
    assert found.errors["nothing"] == "nothing was compiled"


def test_a_job_with_passes(some):
    reported, plain = some[1].kernels
    assert "triton_layouts" not in plain.metadata
    assert list(reported.metadata["triton_layouts"]) == ["report-layouts"]
    assert reported.ptx == plain.ptx


@THIRD_PARTY
def test_kernels_of_other_packages():
    jobs = list(pass_corpus.third_party_jobs())
    found = pass_corpus.compile_jobs(jobs)
    assert found.errors == {}
    assert len(found.kernels) >= 100
    assert {each.arch for each in found.kernels} == {90, 100}
    products = [each for each in found.kernels if any_of(*MMA)(operations(each.ttgir), each)]
    assert len(products) >= 20


def test_dump(tmp_path, some):
    good, found = some
    pass_corpus.dump(found, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.{ending}"
        for name in (good["name"], "reported")
        for ending in ("json", "ptx", "ttgir")
    }


class TestCache:
    @pytest.fixture(autouse=True)
    def empty(self, monkeypatch, tmp_path):
        monkeypatch.setattr(corpus_cache, "FOLDER", tmp_path / "cache")
        self.file, self.calls = tmp_path / "file", 0
        self.file.write_text("1")

    def ask(self, question):
        def compute():
            self.calls += 1
            return [question, self.file.read_text()], [str(self.file)]

        return corpus_cache.kept(question, compute)

    def test_an_answer_is_computed_once(self):
        assert self.ask("a") == self.ask("a") == ["a", "1"]
        assert self.calls == 1
        assert self.ask("b") == ["b", "1"]
        assert self.calls == 2

    def test_a_changed_file_makes_it_new(self):
        self.ask("a")
        self.file.write_text("two")
        assert self.ask("a") == ["a", "two"]
        self.file.unlink()
        assert corpus_cache.stamps([str(self.file)]) == {str(self.file): [0, 0]}

    def test_a_failure_is_not_kept(self):
        with pytest.raises(FileNotFoundError):
            corpus_cache.kept("c", lambda: (self.file.with_name("absent").read_text(), []))
        assert self.ask("c") == ["c", "1"]
