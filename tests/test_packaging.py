"""The wheel: one top-level package, and complete without the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from sites import ROOT

pytest.importorskip("build")

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_actions_are_pinned_by_commit():
    """A tag can be moved, a commit cannot; behind it stands the release that it is."""
    used = [line.split("uses:")[1].strip() for path in WORKFLOWS
            for line in path.read_text().splitlines() if "uses:" in line]  # fmt: skip
    assert len(used) > 10
    for action in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_a_release_is_built_from_files_with_hashes():
    (release,) = [path.read_text() for path in WORKFLOWS if path.stem == "release"]
    requirements = (ROOT / ".github/locks/release.txt").read_text()
    assert "--require-hashes --requirement .github/locks/release.txt" in release
    assert "--no-isolation" in release
    pinned = re.findall(
        r"^([\w-]+)==\S+ \\\n    --hash=sha256:[0-9a-f]{64}$", requirements, re.MULTILINE
    )
    assert set(pinned) == {"build", "packaging", "pyproject_hooks", "setuptools"}
    assert "PUBLISH == 'true'" in release, "it is not switched on by itself"


def test_ci_installs_files_with_hashes():
    """All that the test job installs, but torch; the versions are those of constraints.txt."""
    (ci,) = [path.read_text() for path in WORKFLOWS if path.stem == "ci"]
    assert "make test LOCKED=1" in ci
    pinned: dict[str, set[str]] = {}
    for path in (ROOT / ".github/locks").glob("t*.txt"):
        text = path.read_text()
        found = re.findall(
            r"^([\w.-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}$", text, re.MULTILINE
        )
        assert len(found) == text.count("==")
        for name, version in found:
            pinned.setdefault(name.lower(), set()).add(version)
    assert pinned["triton"] == {"3.7.1", "3.8.0", "3.9.0"}
    known = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    assert len(known.keys() & pinned.keys()) >= 15
    assert all(pinned[name] == {known[name]} for name in known.keys() & pinned.keys())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy of the sources, so that nothing is left in the checkout."""
    work = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout")
    source = work / "source"
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(work)]
    built = subprocess.run([*command, str(source)], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    (path,) = work.glob("*.whl")
    return path


def test_one_top_level_package(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"triton_ext", "triton_ext_passes.pth"}
    for needed in (
        "triton_ext/__init__.py",
        "triton_ext/py.typed",
        "triton_ext/layouts/layout_dump.schema.json",
        "triton_ext/render/grid.py",
        "triton_ext/render/templates/explore.html",
        "triton_ext/render/templates/explore/app.js",
        "triton_ext/hardware/smem_descriptor.py",
        "triton_ext/kernels/device/matmul.py",
        "triton_ext/kernels/choice/corrections.npz",
        "triton_ext/kernels/choice/fixed_sets.json",
        "triton_ext/passes/__init__.py",
    ):
        assert needed in names
    assert any(name.endswith("LICENSE") for name in names)


def test_installed_wheel_works_without_the_checkout(wheel, tmp_path):
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", str(site), str(wheel)], check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(site)}

    def run(*arguments):
        finished = subprocess.run(
            arguments, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    program = "import triton_ext, triton_ext.passes, triton_ext.kernels as k; print(k.__file__)"
    found = Path(run(sys.executable, "-c", program).strip())
    assert found == site / "triton_ext" / "kernels" / "__init__.py"
    text = run(str(site / "bin" / "triton-ext"), "layout", "--bits", "16", "--shape", "8x64")
    assert "offset=256 -> (4, 32)" in text


def test_installed_kernels_compile_without_the_checkout(wheel, tmp_path):
    pytest.importorskip("triton")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    program = (
        "from triton_ext.kernels.spec import kernel_spec\n"
        "from triton_ext.kernels.launch import compile_matmul, kernel_for\n"
        "config = kernel_spec(100, 'bf16', stages=2)\n"
        "assert 'tcgen05.mma' in compile_matmul(config).asm['ptx']\n"
        "print(kernel_for(config).fn.__code__.co_filename)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site), "TRITON_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == str(site / "triton_ext" / "kernels" / "device" / "matmul.py")
