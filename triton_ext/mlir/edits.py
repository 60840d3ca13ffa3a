"""Changes to a printed module, each of exactly the text of a token that was read."""

from __future__ import annotations

from collections.abc import Iterator

from triton_ext.errors import LayoutError
from triton_ext.mlir.ir import Operation
from triton_ext.mlir.module import MlirModule


class Edits:
    """Changes to collect, and then to apply at once.

    The result is text again; whether it is a legal module, MLIR's own parser and verifier say
    (`triton_ext.passes` asks them after every pass that changes something).
    """

    def __init__(self, module: MlirModule) -> None:
        self.module = module
        self._changes: dict[tuple[int, int], str] = {}
        self._insertions: dict[int, list[str]] = {}
        self._definitions: dict[str, str] = {}
        self._names: set[str] | None = None

    def __bool__(self) -> bool:
        return bool(self._changes or self._insertions)

    def replace(self, start: int, stop: int, text: str) -> None:
        """Put `text` in place of what stands from `start` to `stop`."""
        self._changes[start, stop] = text

    def replace_operand(self, operation: Operation, index: int, name: str) -> None:
        """Let an operation take another value. (The types that it prints stay as they are.)"""
        token = operation.operand_tokens[index]
        self.replace(token.start, token.stop, name)

    def insert_before(self, operation: Operation, line: str) -> None:
        """A new operation, on a line of its own."""
        self._insertions.setdefault(operation.start, []).append(line)

    def alias(self, attribute: str, hint: str = "shared_linear") -> str:
        """A name for an attribute: one that the module has already, or a new one."""
        for name, text in (*self.module.aliases.items(), *self._definitions.items()):
            if text == attribute:
                return name
        taken = {*self.module.aliases, *self._definitions}
        name = next(name for i in range(len(taken) + 1) if (name := f"#{hint}_x{i}") not in taken)
        self._definitions[name] = attribute
        return name

    def fresh_name(self, hint: str) -> str:
        """A name that no value of the module has."""
        if self._names is None:
            self._names = {value.name.partition("#")[0] for value in self.module.values}
        number = 0
        while (name := f"%{hint}_x{number}") in self._names:
            number += 1
        self._names.add(name)
        return name

    def _pieces(self) -> Iterator[str]:
        text, at = self.module.text, 0
        changes = [(start, start, lines) for start, lines in self._insertions.items()]
        changes += [(start, stop, [new]) for (start, stop), new in self._changes.items()]
        for start, stop, new in sorted(changes, key=lambda change: change[:2]):
            if start < at:
                raise LayoutError("edit", text[start:stop], "two changes overlap")
            yield text[at:start]
            if start == stop:
                indent = text[text.rfind("\n", 0, start) + 1 : start]
                yield "".join(f"{line}\n{indent}" for line in new)
            else:
                yield new[0]
            at = stop
        yield text[at:]

    def apply(self) -> str:
        """The text with all changes made."""
        definitions = "".join(f"{name} = {text}\n" for name, text in self._definitions.items())
        changed = "".join(self._pieces())
        if not definitions:
            return changed
        # An alias must stand in front of its first use; the module's own ones begin the text.
        return definitions + changed
