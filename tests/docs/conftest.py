"""What the tests of the pages share."""

from __future__ import annotations

import importlib.util

import pytest
from sites import ROOT


@pytest.fixture(scope="session")
def generate():
    """``docs/generate.py``, as `make docs` runs it."""
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
