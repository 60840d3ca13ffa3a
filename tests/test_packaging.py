"""The distributions: they hold what git lists, and the tests run them."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from sites import CHECKOUT, ROOT, installed_folder

pytest.importorskip("build")

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_actions_are_pinned_by_commit():
    """A tag can be moved, a commit cannot; behind it stands the release that it is."""
    used = [line.split("uses:")[1].strip() for path in WORKFLOWS
            for line in path.read_text().splitlines() if "uses:" in line]  # fmt: skip
    assert len(used) > 10
    for action in used:
        if action.startswith("./"):  # this repository's own
            continue
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
    assert "make test LOCKED=1 WHEEL=" in release
    assert "needs: [build, test]" in release


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
def distributions(tmp_path_factory):
    """The source distribution and the wheel that is built from it, and what the build says.

    Made from a copy of the sources, so that nothing is left in the checkout.
    """
    work = tmp_path_factory.mktemp("distributions")
    listed = listed_by_git()
    source = work / "source"
    for name in listed:
        if (CHECKOUT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((CHECKOUT / name).read_bytes())
    (source / "kernels" / "__pycache__").mkdir()
    (source / "kernels" / "__pycache__" / "left.cpython-311.pyc").touch()
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(work)]
    built = subprocess.run([*command, str(source)], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    (wheel,), (sdist,) = work.glob("*.whl"), work.glob("*.tar.gz")
    return wheel, sdist, built.stdout + built.stderr


def listed_by_git() -> list[str]:
    """The files of the checkout, those included that are new."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT, capture_output=True, text=True,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout")
    return listed.stdout.splitlines()


def product() -> dict[str, str]:
    """The product's files as git lists them: where each is installed."""
    files = {}
    for name in listed_by_git():
        folder = name.partition("/")[0]
        if folder in ("triton_ext", "triton_layouts.py") or name.endswith(".pth"):
            files[name] = name
        elif folder in ("passes", "kernels"):
            files[name] = f"triton_ext/{name}"
    return {name: place for name, place in files.items() if (CHECKOUT / name).is_file()}


def test_the_wheel_is_what_git_lists(distributions):
    wheel, _, _ = distributions
    names = zipfile.ZipFile(wheel).namelist()
    files = {name for name in names if ".dist-info/" not in name}
    assert files == set(product().values())
    assert any(name.endswith("LICENSE") for name in names)


def test_the_source_distribution_is_what_git_lists(distributions):
    _, sdist, _ = distributions
    with tarfile.open(sdist) as archive:
        names = {each.name.partition("/")[2] for each in archive.getmembers() if each.isfile()}
    made = {"PKG-INFO", "setup.cfg", *(name for name in names if ".egg-info/" in name)}
    beside = {"CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py"}
    assert names - made == set(product()) | beside


def test_setuptools_has_nothing_to_warn_of(distributions):
    _, _, said = distributions
    assert "Building wheel" in said
    assert not re.findall(r"^.*(?:Deprecat|Warning|is absent from).*$", said, re.MULTILINE)


@pytest.mark.skipif(ROOT == CHECKOUT, reason="`make pytest` runs the wheel")
def test_the_suite_runs_what_is_installed():
    """No module of the product that any test has imported here comes from the sources."""
    files = [
        Path(file).resolve()
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == "triton_ext" and (file := getattr(module, "__file__", None))
    ]
    assert installed_folder("triton_ext").is_relative_to(sys.prefix)
    sources = [CHECKOUT / folder for folder in ("triton_ext", "passes", "kernels")]
    assert not [file for file in files if any(map(file.is_relative_to, sources))]
