"""A reader of MLIR modules as Triton prints them: operations, values, regions, source locations.

Triton's Python bindings walk a module, but show neither most attributes nor the values that
regions receive, and cannot replace one operand. What is missing is read here from the printed
form, by its grammar: an operation ends with its line, unless a bracket is open or a region follows;
a ``{`` that ends a line opens a region, any other one a dictionary (MLIR's ``AsmPrinter``). Each
token keeps its position in the text, so that a change edits exactly that token
(`triton_ext.mlir.edits`).

Types are known for what the printed form says: every result whose type stands behind the operation,
and every argument of a region. ``None`` stands for the few others.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from triton_ext.mlir.attributes import attribute_aliases
from triton_ext.mlir.ir import Operation, Value
from triton_ext.mlir.locations import Source
from triton_ext.mlir.reader import Reader
from triton_ext.mlir.types import MemoryType, memory_type


class MlirModule:
    """A module as Triton prints it.

    Args:
        text: ``str(module)``, or what Triton's cache keeps as ``.ttir`` and ``.ttgir``.

    Attributes:
        text: that text.
        root: the ``module`` operation.

    Raises:
        LayoutError: the text is not a module of this form.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.root = Reader(Source(text)).read()
        self._memory_types: dict[str, MemoryType | None] = {}

    @cached_property
    def aliases(self) -> dict[str, str]:
        """The attribute aliases: ``#shared`` -> ``#ttg.nvmma_shared<...>``."""
        return attribute_aliases(self.text)

    @cached_property
    def operations(self) -> list[Operation]:
        """All operations, each after what it contains: the order of Triton's ``module.walk``."""
        return list(self.root.walk())

    @cached_property
    def kernel(self) -> Operation | None:
        """The function that the host launches: the first public ``tt.func``."""
        for operation in self.operations:
            if operation.name == "tt.func" and any(t.text == "public" for t in operation.tokens):
                return operation
        return None

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the module: ``ttg.num-warps``, ``ttg.target``, ..."""
        return self.root.attributes

    @cached_property
    def values(self) -> list[Value]:
        """All results and arguments of blocks."""
        found = [value for operation in self.operations for value in operation.results]
        for operation in self.operations:
            for region in operation.regions:
                found += [value for block in region.blocks for value in block.arguments]
        return found

    def resolve(self, attribute: str) -> str:
        """An attribute's text, with its alias resolved."""
        return self.aliases.get(attribute, attribute)

    def memory(self, value: Value) -> MemoryType | None:
        """The type of a value, if it is memory or a TMA descriptor."""
        text = value.type
        if text is None:
            return None
        if text not in self._memory_types:
            self._memory_types[text] = memory_type(text, self.aliases)
        return self._memory_types[text]
