"""Where things are: the checkout, the tests' data and workers, and the releases of Triton; and
how much is tested.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

SUPPORT = Path(__file__).resolve().parent
DATA = SUPPORT.parent / "data"
ROOT = SUPPORT.parent.parent
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
