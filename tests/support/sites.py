"""Where things are: the checkout, the tests' data and workers, the product as it is installed, and
the releases of Triton; and how much is tested.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

SUPPORT = Path(__file__).absolute().parent
DATA = SUPPORT.parent / "data"
ROOT = SUPPORT.parent.parent
"""The folder with tests, docs, benchmarks and examples: the checkout, or (`make pytest`) a folder
of links to all that is in it but the product's sources."""
CHECKOUT = Path(__file__).resolve().parents[2]
"""The checkout: for tests of the sources themselves."""


def installed_folder(package: str) -> Path:
    """Where the modules of a package are, as Python finds them, which is not imported."""
    spec = importlib.util.find_spec(package)
    assert spec is not None, package
    assert spec.origin is not None, package
    return Path(spec.origin).parent


ALL = os.environ.get("CORPUS_TIER") == "3"
"""Whether to test all that `make oracle` does."""


def triton_sites() -> list[pytest.param]:
    """The releases of Triton at hand: the importable one (None) and those in ``.tritons``."""
    sites: list[Path | None] = [path.parent for path in sorted(ROOT.glob(".tritons/*/.ready"))]
    if importlib.util.find_spec("triton"):
        sites.append(None)
    if not sites:
        return [pytest.param(None, marks=pytest.mark.skip(reason="needs Triton"))]
    return [pytest.param(site, id=site.name if site else "installed") for site in sites]
