"""Settings of hypothesis, the order of tests, the GPU markers, compilation without ptxas, and
headless Chromium.
"""

from __future__ import annotations

import functools
import gc
import os
import shutil
import sys
import zlib

import pytest
from hypothesis import settings
from sites import ALL, ROOT

# Examples are cheap, the machine is shared: no deadline; the same examples every time.
settings.register_profile("default", deadline=None, derandomize=True)
settings.load_profile("default")


@functools.cache
def gpu_architecture() -> int:
    """90 or 100 if such a GPU is at hand, else 0."""
    try:
        import torch
    except ImportError:
        return 0
    if not torch.cuda.is_available():
        return 0
    major, minor = torch.cuda.get_device_capability()
    return 90 if (major, minor) == (9, 0) else 100 if major == 10 else 0


# They come first, so that no process of xdist is left with one of them at the end; and of the
# releases of Triton that are not installed they take the named one, but by `make oracle`. It is one
# for all that asks for the corpus, which other releases need not compile then.
CORPUS = "3.8.0"
LONG = {
    "test_every_job_compiles": CORPUS,
    "test_what_is_left_alone_in_the_corpus": CORPUS,
    "test_what_it_says_of_compiled_kernels": CORPUS,
    "test_the_facts_are_those_of_the_compiled_kernels": CORPUS,
    "test_no_false_alarm": CORPUS,
    "test_seeded_faults": None,
    "test_generated_layouts_give_the_ptx_of_nvmma_encodings": "3.7.1",
    "test_compiled_descriptors_are_the_derived_ones": "3.8.0",
    "test_odd_layouts": "3.8.0",
    "test_what_triton_refuses": "3.8.0",
    "test_rows_without_swizzle_are_taken_for_swizzled_ones": "3.8.0",
    "test_a_chunk_cut_in_two": "3.8.0",
    "test_an_illegal_shape_is_compiled": "3.8.0",
    "test_unsigned_bytes_are_multiplied_as_signed": "3.8.0",
    "test_tritons_descriptors_are_the_derived_ones": "3.7.1",
    "test_how_many_configurations": "3.8.0",
    "test_triton_writes_0_where_lbo_is_unused": "3.7.1",
    "test_the_corpus_is_accepted": CORPUS,
    "test_the_ptx_is_identical": CORPUS,
    "test_every_basis_matters": "3.7.1",
    "test_other_releases": "3.7.1",
    "test_chains_of_views": "3.7.1",
    "test_reproductions": "3.7.1",
    "test_what_a_release_cannot_do": "3.7.1",
    "test_other_releases_of_triton": "3.8.0",
    "test_kernels_of_the_corpus": CORPUS,
    "test_layouts_and_loads_are_tritons": "3.7.1",
    "test_triton_issues_the_same_copies": "3.8.0",
    "test_the_layouts_are_tritons": "3.7.1",
    "test_triton_prints_encodings_as_we_do": "3.8.0",
    "test_as_triton_walks_it": CORPUS,
    "test_triton_counts_the_same": "3.7.1",
    "test_every_triton": "3.7.1",
    "test_faults_made_by_machine": None,
    "test_changed_kernels_give_the_same_bits": None,
    "test_every_kind_of_product_on_blackwell": None,
}


def left_to_the_oracle(item: pytest.Item) -> bool:
    """Whether another of the releases that are not installed stands for this test's."""
    named = LONG.get(item.name.partition("[")[0])
    site = item.callspec.params.get("site") if hasattr(item, "callspec") else None
    others = ROOT / ".tritons"
    return bool(named and site and site.name != named and (others / named / ".ready").exists())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not ALL:
        config.hook.pytest_deselected(items=[each for each in items if left_to_the_oracle(each)])
        items[:] = [each for each in items if not left_to_the_oracle(each)]
    items.sort(key=lambda item: item.name.partition("[")[0] not in LONG)
    for item in items:
        for arch in (90, 100):
            if item.get_closest_marker(f"sm{arch}") and gpu_architecture() != arch:
                item.add_marker(pytest.mark.skip(reason=f"needs an sm_{arch} GPU"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """The garbage collector leaves out what lasts as long as the process: torch, Triton, the tests.

    And it runs less often: the emulator makes many small objects, few of which are in cycles. It
    had a tenth of the time of the emulator's tests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Likewise what the tests of one module leave: modules, caches, compiled kernels."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def torch_draws_the_same_numbers(request: pytest.FixtureRequest):
    """A test's random tensors are the same in each run, whichever tests ran before."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(zlib.crc32(request.node.name.encode()))


@pytest.fixture(autouse=True)
def triton_has_its_own_settings():
    """A test sets Triton's knobs by the environment: one that is set in Python, even to the value
    it has, hides the environment, and with it the cache folder, from all tests that follow."""
    before = os.environ.get("TRITON_CACHE_DIR")
    yield
    if before is None:
        os.environ.pop("TRITON_CACHE_DIR", None)  # torch.compile sets it
    else:
        os.environ["TRITON_CACHE_DIR"] = before
    if knobs := sys.modules.get("triton.knobs"):
        for group in vars(knobs).values():
            if isinstance(group, knobs.base_knobs):
                left = group.knob_descriptors.keys() & vars(group).keys()
                assert not left, f"the test leaves knobs set: {left}"


@pytest.fixture
def no_binaries():
    """Triton stops at the PTX: the emulator needs no binary."""
    pytest.importorskip("triton")
    from up_to_ptx import up_to_ptx

    with up_to_ptx():
        yield


@pytest.fixture
def shallow():
    """Two tiles in flight, where the cost model would fill shared memory."""
    from shallow_rings import two_stages

    with two_stages():
        yield


@pytest.fixture
def poisoned_memory():
    """Let torch fill new memory with NaN, so that an element left out cannot go unnoticed."""
    import torch

    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
    yield
    torch.use_deterministic_algorithms(False)
    torch.cuda.empty_cache()  # several test processes may share the GPU


@pytest.fixture(scope="session")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    program = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if program is None:
        pytest.skip("needs Chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync"]
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=flags)
        yield started
        started.close()


@pytest.fixture
def open_page(browser, tmp_path):
    """Opens a page or picture offline; afterwards: no network was asked, no script failed."""
    contexts, requests, problems = [], [], []

    def open_text(text, width=1280, scheme="light", state=""):
        path = tmp_path / f"{len(contexts)}.{'svg' if text.startswith('<svg') else 'html'}"
        path.write_text(text, encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            offline=True,
            reduced_motion="reduce",
        )
        context.set_default_timeout(30_000)  # CI has been ten times as slow as usual
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text))
        page.goto(path.as_uri() + (f"#{state}" if state else ""))
        return page

    yield open_text
    for context in contexts:
        context.close()
    assert all(url.startswith(("file://", "about:", "data:")) for url in requests)
    assert not problems
