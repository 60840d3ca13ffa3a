"""The package for the kernel hub, by the library that loads it."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys

import pytest
from sites import ROOT

pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub") / "package"
    subprocess.run([sys.executable, ROOT / "hub/build.py", folder], check=True, cwd=ROOT)
    return folder


def test_it_holds_what_it_imports_and_no_more(package):
    """Every relative import finds its module, and only the emulator is asked for outside."""
    variant = package / "build/torch-universal"
    files = set(variant.rglob("*.py"))
    reached, waiting = set(), [variant / "__init__.py"]
    outside = set()
    while waiting:
        file = waiting.pop()
        if file in reached:
            continue
        reached.add(file)
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.ImportFrom):
                continue
            if not node.level:
                outside |= {node.module} if "triton_ext" in node.module else set()
                continue
            base = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            targets = [base / f"{each.name}.py" for each in node.names]
            waiting += [target for target in targets if target in files]
            if base.with_suffix(".py") in files:
                waiting.append(base.with_suffix(".py"))
            else:
                assert any(target in files for target in targets), (file, node.module)
    assert outside == {"triton_ext.emulator.host"}
    assert {file for file in files - reached if file.stat().st_size} == set()


def worker(package, *arguments):
    library = importlib.util.find_spec("huggingface_hub")  # `kernels` is a folder here, too
    if library is None:
        pytest.skip("needs the package kernels")
    command = [sys.executable, ROOT / "tests/support/hub_worker.py", package, *arguments]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=package)
    assert not done.returncode, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_library_loads_it_and_puts_its_layer_in_place_of_torch_s(package):
    found = worker(package)
    assert not found["triton_ext"], "it needs no triton_ext"
    assert found["difference"] < 0.1
    assert found["launches"] == 2 + 3, "forward, and all gradients but that of the input"
    assert max(found["differences"]) < 0.02


def test_without_a_gpu_and_triton_ext(package):
    found = worker(package, "alone")
    kind, message = found["error"]
    assert kind == "UnsupportedDeviceError"
    assert "the tensors are on cpu" in message
    assert max(found["differences"]) < 0.02
