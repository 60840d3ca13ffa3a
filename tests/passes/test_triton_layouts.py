"""``import triton_layouts``: the project as an extension of Triton, in upstream's way."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from importlib.metadata import metadata

import pytest
from sites import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytest.importorskip("triton")

PROGRAM = """
import json, sys
import triton, triton_layouts
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
sys.path.insert(0, sys.argv[1])
from copying import copy

source = ASTSource(fn=copy, signature={"a": "*fp16", "b": "*fp16"}, constexprs={})
target, options = GPUTarget("cuda", 90, 32), {"enable_fp_fusion": True}
kept = [getattr(triton.compile(source, target=target, options=options).metadata, "triton_layouts", {})]
triton_layouts.uninstall()
kept.append(getattr(triton.compile(source, target=target, options=options).metadata, "triton_layouts", {}))
print(json.dumps([*map(list, kept), triton.knobs.runtime.add_stages_inspection_hook is None]))
"""  # noqa: E501
KERNEL = """
import triton, triton.language as tl

@triton.jit
def copy(a, b):
    tl.store(b, tl.load(a))
"""


@pytest.mark.parametrize(
    ("environment", "ran"),
    [
        (None, ["check-conversion", "verify-descriptors"]),
        ("lint-shared", ["lint-shared"]),
        ("", []),
    ],
)
def test_the_import_turns_passes_on(tmp_path, environment, ran):
    """Those of its own, or those that the environment names."""
    (tmp_path / "copying.py").write_text(KERNEL)
    variables = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    variables.pop("TRITON_EXT_PASSES", None)
    if environment is not None:
        variables["TRITON_EXT_PASSES"] = environment
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=variables, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    first, second, out = json.loads(run.stdout.splitlines()[-1])
    stays = bool(environment)  # the environment's passes are not those of `install`
    assert (first, second, out) == (ran, ran if stays else [], not stays)


def test_the_manifest_is_what_upstream_reads():
    """The rules of ci/extension.py in triton-lang/triton-ext: a table, and a name with a prefix."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    name, table = project["project"]["name"], project["tool"]["triton-ext"]
    assert name.startswith("triton-")
    assert name != "triton-ext"
    assert table.keys() == {"status", "enabled"}
    assert table["status"] in ("experimental", "stable")
    assert table["enabled"] is True
    assert importlib.util.find_spec(name.replace("-", "_"))
    assert metadata(name)["Name"] == name
