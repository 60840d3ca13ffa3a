"""Several PTX modules as one, as CUDA's driver links them: nvcc's relocatable device code (-rdc).

PTX ISA, "Linking Directives": ``.extern`` names what another module defines, ``.weak`` and
``.common`` give way to ``.visible``, and to each other; what has none of them is a module's own,
and gets another name where a second module has one of that name.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

from triton_ext.errors import LayoutError
from triton_ext.ptx.parse import Kernel, Module, Variable

_Symbol = TypeVar("_Symbol", Kernel, Variable)


def linked(modules: Sequence[Module]) -> Module:
    """One module of several, for one target. Raises LayoutError: two modules define a name, or none
    defines a variable that one declares."""
    names = Counter(name for each in modules for name in {one.name for one in _symbols(each)})
    modules = [_renamed(each, number, names) for number, each in enumerate(modules)]
    variables = _defined([one for each in modules for one in each.variables])
    for each in variables:
        if each.linkage == "extern" and each.space != "shared":
            raise LayoutError("ptx", each.name, "is .extern, and no module defines it")
    return dataclasses.replace(
        max(modules, key=lambda each: [int(part) for part in each.version.split(".")]),
        kernels=_defined([one for each in modules for one in each.kernels]),
        variables=variables,
    )


def _symbols(module: Module) -> list[Kernel | Variable]:
    return [*module.kernels, *module.variables]


def _defined(symbols: Sequence[_Symbol]) -> tuple[_Symbol, ...]:
    """The symbol of each name that the others of that name give way to."""
    found: dict[str, _Symbol] = {}
    for each in symbols:
        before = found.get(each.name)
        if before is None or _rank(each) > _rank(before):
            found[each.name] = each
        elif _rank(each) == _rank(before) == 2:
            raise LayoutError("ptx", each.name, "is defined by two modules")
    return tuple(found.values())


def _rank(symbol: Kernel | Variable) -> int:
    return {"extern": 0, "weak": 1, "common": 1}.get(symbol.linkage, 2)


def _renamed(module: Module, number: int, names: Mapping[str, int]) -> Module:
    """The module, with other names for its own symbols where another has one of that name."""
    own = {
        each.name: f"{each.name}$unit{number}"
        for each in _symbols(module)
        if not each.linkage and names[each.name] > 1
    }
    if not own:
        return module
    pattern = re.compile(rf"(?<![\w$%.])(?:{'|'.join(map(re.escape, own))})(?![\w$])")

    def renamed(text: str) -> str:
        return pattern.sub(lambda match: own[match[0]], text)

    kernels = tuple(
        dataclasses.replace(
            kernel,
            name=own.get(kernel.name, kernel.name),
            instructions=tuple(
                dataclasses.replace(each, operands=tuple(map(renamed, each.operands)))
                for each in kernel.instructions
            ),
        )
        for kernel in module.kernels
    )
    variables = tuple(
        dataclasses.replace(
            each, name=own.get(each.name, each.name), initializer=renamed(each.initializer)
        )
        for each in module.variables
    )
    return dataclasses.replace(module, kernels=kernels, variables=variables)
