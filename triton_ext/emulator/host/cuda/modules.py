"""Modules as programs load them: PTX, or binaries that have some, and their variables."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field, replace

from triton_ext.emulator.decode.function_addresses import function_addresses
from triton_ext.emulator.errors import LaunchError
from triton_ext.emulator.host.cuda.heap import Heap, Room
from triton_ext.emulator.host.cuda.status import CudaError
from triton_ext.emulator.host.run import initial_bytes
from triton_ext.errors import LayoutError
from triton_ext.ptx.files import ptx_of_bytes
from triton_ext.ptx.linking import linked
from triton_ext.ptx.parse import NVVM, Module, parse_ptx

_TARGET = re.compile(r"^(\s*\.target\s+)sm_(\d+)([af]?)", re.MULTILINE)
_INVALID_IMAGE, _NO_BINARY, _INVALID_PTX = 200, 209, 218
_KEEP = (
    "compile with -gencode arch=compute_{arch},code=compute_{arch}, which keeps the PTX (nvcc keeps"
    " it for code=compute_..., not for code=sm_...)"
)


def chosen(texts: list[str], arch: int) -> str:
    """The PTX that a GPU's driver would compile, with the GPU as its target: that of the newest
    architecture that the GPU runs. PTX for sm_90 runs on all later ones, that for sm_90a on sm_90
    alone (PTX ISA, ".target").

    Raises:
        CudaError: there is none.
    """
    best: tuple[int, bool, str] | None = None
    targets = []
    for text in texts:
        match = _TARGET.search(text)
        if match is None:
            continue
        number, suffix = int(match[2]), match[3]
        targets.append(f"sm_{number}{suffix}")
        family = suffix == "f" and number // 10 == arch // 10
        legal = number == arch or (number < arch and (not suffix or family))
        if legal and (best is None or (number, bool(suffix)) > best[:2]):
            best = (number, bool(suffix), text)
    if best is None:
        named = ", ".join(targets) or "no target"
        raise CudaError(
            _NO_BINARY,
            f"its PTX is for {named}, which sm_{arch} does not run: "
            + _KEEP.format(arch=f"{arch}a" if arch >= 90 else arch),
        )
    suffix = "a" if arch >= 90 else ""
    return _TARGET.sub(rf"\g<1>sm_{arch}{suffix}", best[2], count=1)


@dataclass
class Loaded:
    """A module, with its variables in memory.

    Attributes:
        module: what was read of it.
        variables: the memory of each variable in global or constant memory.
    """

    module: Module
    variables: dict[str, Room] = field(default_factory=dict)

    @functools.cached_property
    def kernels(self) -> list[str]:
        """The names of its kernels."""
        return [each.name for each in self.module.kernels if each.is_entry]


def load(image: bytes, arch: int, heap: Heap) -> Loaded:
    """Load an image: PTX, an ELF file, a fatbin, or several in a row, which are linked. Raises
    CudaError: it has no PTX that the GPU runs."""
    is_text = image.lstrip().startswith((b"/", b"."))
    units: dict[int, list[str]] = {}
    try:
        for one in ptx_of_bytes(image.rstrip(b"\0") if is_text else image, "a module"):
            units.setdefault(one.fatbin, []).append(one.text)
    except LayoutError as error:
        status = _NO_BINARY if "no PTX" in error.rule else _INVALID_IMAGE
        why = error.rule
        if status == _NO_BINARY:
            why = "the kernel is there as machine code alone, and the emulated GPU runs PTX: "
            why += _KEEP.format(arch=f"{arch}a" if arch >= 90 else arch)
        raise CudaError(status, why) from None
    refused: list[CudaError] = []
    modules = []
    try:
        for texts in units.values():
            try:
                modules.append(parse_ptx(chosen(texts, arch)))
            except CudaError as error:
                refused.append(error)  # of NVIDIA's own library, which nvcc links to every program
        if not modules:
            raise refused[0]
        module = linked(modules)
    except LayoutError as error:
        raise CudaError(_INVALID_PTX, str(error)) from None
    if not is_text:  # nvcc takes the comments out of its files
        module = replace(module, generator=module.generator or NVVM)
    loaded = Loaded(module)
    found = [each for each in loaded.module.variables if each.space in ("global", "const")]
    for each in found:
        loaded.variables[each.name] = heap.allocate(each.bytes, name=f"variable {each.name}")
    addresses = {name: room.start for name, room in loaded.variables.items()}
    addresses |= function_addresses(loaded.module)
    for each in found:
        try:
            values = initial_bytes(each, addresses)
        except LaunchError as error:
            raise CudaError(_INVALID_PTX, error.message) from None
        heap.data(loaded.variables[each.name])[:] = values[: each.bytes]
    return loaded
