"""Settings of hypothesis, the order of tests, the GPU markers, compilation without ptxas, and
headless Chromium.
"""

from __future__ import annotations

import functools
import shutil

import pytest
from hypothesis import settings

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


# They come first, so that no process of xdist is left with one of them at the end.
LONG = (
    "test_no_false_alarm",
    "test_seeded_faults",
    "test_generated_layouts_give_the_ptx_of_nvmma_encodings",
    "test_compiled_descriptors_are_the_derived_ones",
    "test_the_corpus_is_accepted",
    "test_the_ptx_is_identical",
    "test_every_basis_matters",
    "test_other_releases",
    "test_other_releases_of_triton",
    "test_kernels_of_the_corpus",
    "test_faults_made_by_machine",
    "test_changed_kernels_give_the_same_bits",
    "test_every_kind_of_product_on_blackwell",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.name.partition("[")[0] not in LONG)
    for item in items:
        for arch in (90, 100):
            if item.get_closest_marker(f"sm{arch}") and gpu_architecture() != arch:
                item.add_marker(pytest.mark.skip(reason=f"needs an sm_{arch} GPU"))


@pytest.fixture
def no_binaries():
    """Triton stops at the PTX: the emulator needs no binary."""
    pytest.importorskip("triton")
    from triton_ext.passes.frame.both_ways import up_to_ptx

    with up_to_ptx():
        yield


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
        context.set_default_timeout(4000)
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
