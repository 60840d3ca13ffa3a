"""What is known about one instruction of a kernel: lines for people, values for programs."""

from __future__ import annotations

from collections.abc import Collection
from functools import singledispatch
from typing import Any

from triton_ext.hardware.architecture import CTA_ADDRESS_BITS
from triton_ext.ptx.folding import Folder
from triton_ext.ptx.known_bits import Bits
from triton_ext.ptx.parse import Instruction


class Notes:
    """What is known about one instruction: lines for people, values for programs.

    Args:
        instruction: what they are about; `triton_ext.ptx.explain.explain` adds what it says.
        folder: what is known about the registers of its kernel.
        arch: 90 or 100.
        symbols: the shared variables of the kernel and its module; if there is more than one,
            addresses are shown with the variable's name.
    """

    def __init__(
        self,
        instruction: Instruction,
        folder: Folder,
        arch: int,
        symbols: Collection[str] = (),
    ) -> None:
        self.instruction, self.folder, self.arch = instruction, folder, arch
        self.lines: list[str] = []
        self.values: dict[str, Any] = {}
        self._symbols = symbols

    def add(self, line: str, **values: Any) -> None:
        """Add a line, and the values that it states."""
        self.lines.append(line)
        self.values.update(values)

    def bits(self, text: str, width: int) -> Bits:
        """The known bits of an operand."""
        return self.folder.operand(text, width, self.instruction)

    def number(self, text: str, width: int = 32) -> int | None:
        """An operand's value, if all of it is known."""
        bits = self.bits(text, width)
        return bits.field(0, width) if text else None

    def root(self, text: str) -> str:
        """The register, parameter or symbol that an operand or address is computed from."""
        name, offset = self.folder.root(text, self.instruction)
        kernel = self.folder.kernel.name
        if kernel and name.strip("[]").startswith(kernel + "_param_"):
            name = name.replace(kernel + "_", "", 1)
        return f"{name} + {offset}" if offset > 0 else f"{name} - {-offset}" if offset else name

    def condition(self, text: str) -> str:
        """For which thread, block and iteration a known value holds; "" if for all of them."""
        origins = self.folder.origins(text, self.instruction)
        said = []
        if any(name.startswith(("%tid", "%lane", "%warp")) for name in origins):
            said.append("in thread 0")
        if any(name.startswith(("%ctaid", "%cluster")) for name in origins):
            said.append("in block 0")
        if any(self.folder.is_reassigned(name) for name in origins):
            said.append("at first")
        return "".join(f" {part}" for part in said)

    def amount(self, text: str) -> str:
        """An operand in words: its number or, if that is not known, its root."""
        value = self.number(text)
        return self.root(text) if value is None else f"{value}{self.condition(text)}"

    def known(self, text: str) -> int | str | None:
        """An operand for programs: its number or, if that is not known, its root."""
        value = self.number(text)
        return value if value is not None else self.root(text) if text else None

    def shared(self, text: str) -> str:
        """A shared-memory address in words."""
        value = self.shared_address(text)
        return self.root(text) if value is None else self.at(value, text)

    def at(self, value: int, text: str) -> str:
        """The same, where the operand is known to hold the address `value`."""
        names = self.symbols(text) if len(self._symbols) > 1 else ()
        return f"{'/'.join(names)}+{value}{self.condition(text)}"

    def tensor_memory(self, text: str) -> str:
        """An address in tensor memory, in words: ``[+8] + 4`` is 4 more than tcgen05.alloc wrote to
        shared address 8."""
        name, offset = self.folder.root(text, self.instruction)
        loaded = self.folder.definition(name, self.instruction)
        if (
            loaded is not None
            and loaded.opcode.startswith("ld.shared")
            and len(loaded.operands) > 1
        ):
            own = Notes(loaded, self.folder, self.arch, self._symbols)
            if own.shared_address(loaded.operands[1]) is not None:
                stored_at = f"[{own.shared(loaded.operands[1])}]"
                return f"{stored_at} + {offset}" if offset > 0 else stored_at
        return self.root(text)

    def symbols(self, text: str) -> list[str]:
        """The shared variables that an address is computed from."""
        origins = self.folder.origins(text, self.instruction)
        return sorted(origins.intersection(self._symbols))

    def shared_address(self, text: str) -> int | None:
        """A shared-memory address within its CTA, in bytes from the start of its symbol."""
        bits = self.folder.address(text, self.instruction)
        return bits.field(0, CTA_ADDRESS_BITS) if text else None

    def address_values(self, key: str, text: str) -> dict[str, Any]:
        """A shared-memory address for programs: its number or root, and its symbols."""
        value = self.shared_address(text)
        return {
            key: self.root(text) if value is None else value,
            f"{key}_symbols": self.symbols(text),
        }


@singledispatch
def add_notes(form: object, notes: Notes) -> None:
    """Add what is known about an instruction of this form; an overload for each form."""


def add_cluster_mask(notes: Notes, text: str) -> None:
    mask = notes.number(text, 16)
    if mask is None:
        notes.add(f"multicast to the CTAs of mask {notes.root(text)}", multicast=notes.root(text))
    else:
        ctas = [bit for bit in range(16) if mask >> bit & 1]
        shown = ", ".join(map(str, ctas)) or "none"
        notes.add(f"multicast to CTAs {shown}{notes.condition(text)}", multicast=ctas)
