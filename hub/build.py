"""Write the package for the kernel hub: ``python hub/build.py FOLDER``.

The layout is the one that the library ``kernels`` loads: ``build/torch-universal`` with a module
and its metadata. Vendored is what `triton_ext.ops.functional` imports, and no more: neither the
emulator (which is used if triton_ext is installed beside it), nor passes, nor the command line. The
hub loads several versions of a kernel into one process, so imports become relative, and the
operators get a namespace of their own.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {"triton_ext.kernels": ROOT / "kernels", "triton_ext": ROOT / "triton_ext"}
ENTRIES = ("triton_ext.ops.functional", "triton_ext.ops.sharding")
LEFT_OUT = "triton_ext.emulator"
VERSION = 1
"""Of the kernel, as the hub counts: it changes when what users call does."""


def source(module: str) -> Path | None:
    """The file of a module of this project; None if there is none of that name."""
    for package, folder in SOURCES.items():
        if f"{module}.".startswith(f"{package}."):
            path = folder.joinpath(*module.removeprefix(package).split("."))
            found = (path.with_suffix(".py"), path / "__init__.py")
            return next((file for file in found if file.is_file()), None)
    return None


def imported(text: str) -> set[str]:
    """The names of modules, or of what is in them, that a text imports."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


def needed() -> dict[str, str]:
    """The text of each module that the entries import, and of those that these do."""
    found: dict[str, str] = {}
    waiting = list(ENTRIES)
    while waiting:
        module = waiting.pop()
        path = source(module)
        packages = path is not None and path.name == "__init__.py"
        if path is None or module in found or packages or module.startswith(LEFT_OUT):
            continue
        found[module] = path.read_text()
        waiting += imported(found[module])
    return found


def relative(module: str, text: str, modules: set[str], namespace: str) -> str:
    """A module's text with relative imports of the vendored modules, and its own operators."""
    dots = "." * module.count(".")
    packages = {name.rpartition(".")[0] for name in modules}

    def replaced(match: re.Match[str]) -> str:
        if match[2] in modules | packages:
            return f"{match[1]}from {dots}{match[2].removeprefix('triton_ext').lstrip('.')} import"
        return match[0]

    text = re.sub(r"^( *)from (triton_ext[\w.]*) import", replaced, text, flags=re.M)
    return text.replace('Library("triton_ext"', f'Library("{namespace}"').replace(
        "torch.ops.triton_ext", f"torch.ops.{namespace}"
    )


def build(folder: Path) -> Path:
    """Write the package into a folder, replacing what was there; returns the variant's folder."""
    modules = needed()
    kernels = ROOT / "kernels"
    data = sorted(each for kind in ("json", "npz") for each in kernels.rglob(f"*.{kind}"))
    content = "".join(modules[name] for name in sorted(modules)).encode()
    content += b"".join(file.read_bytes() for file in data)
    name = f"triton_ext_{hashlib.sha256(content).hexdigest()[:12]}"
    variant = folder / "build" / "torch-universal"
    shutil.rmtree(folder, ignore_errors=True)
    for module, text in modules.items():
        path = variant.joinpath(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(relative(module, text, set(modules), name))
    for file in data:
        shutil.copy(file, variant / "triton_ext" / "kernels" / file.relative_to(kernels))
    for package, _, _ in os.walk(variant / "triton_ext"):
        (Path(package) / "__init__.py").touch()
    for name_of, target in (("package.py", "__init__.py"), ("layers.py", "layers.py")):
        shutil.copy(ROOT / "hub" / name_of, variant / target)
    metadata = {
        "id": name,
        "name": "triton-layouts",
        "version": VERSION,
        "license": "MIT",
        "python-depends": [],
        "backend": {"type": "cuda"},
    }
    (variant / "metadata.json").write_text(json.dumps(metadata, indent=1) + "\n")
    shutil.copy(ROOT / "LICENSE", folder / "LICENSE")
    return variant


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    variant = build(parser.parse_args().folder)
    lines = sum(len(file.read_text().splitlines()) for file in variant.rglob("*.py"))
    print(f"{variant}: {len(list(variant.rglob('*.py')))} files, {lines} lines")


if __name__ == "__main__":
    main()
