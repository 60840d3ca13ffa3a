"""What every shared-memory encoding is: a linear layout, and where each of its offsets lies.

`triton_ext.layouts.encodings.ENCODINGS` lists the encodings that there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, ClassVar, TypeVar, cast

from triton_ext.display import Displayed
from triton_ext.errors import LayoutError
from triton_ext.layouts.attributes import Attribute, parse_attribute
from triton_ext.layouts.linear_layout import LinearLayout

Paddings = tuple[tuple[int, int], ...]
"""Pairs (interval, padding), in elements: after each `interval` elements, `padding` unused ones."""

DEFAULT_ALIGNMENT = 16
"""What the address of a tile is a multiple of where nothing else is said, in bytes (Triton,
``getAlignmentOrDefault``)."""

_Own = TypeVar("_Own", bound="SharedEncoding")


class SharedEncoding(Displayed, ABC):
    """A shared-memory encoding of Triton, as a frozen value; ``str`` prints its MLIR attribute.

    Attributes:
        NAME: of the attribute, with its dialect: ``ttg.nvmma_shared``.
        GLUON: of the class in ``triton.experimental.gluon.language``.
        paddings: what `address` skips; () where an offset is its own address.
    """

    NAME: ClassVar[str]
    GLUON: ClassVar[str]
    paddings: Paddings = ()

    @classmethod
    def parse(cls: type[_Own], text: str) -> _Own:
        """From an MLIR attribute, in any spelling that Triton prints. Raises LayoutError."""
        return cls.from_attribute(parse_attribute(text))

    @classmethod
    @abstractmethod
    def from_attribute(cls: type[_Own], attribute: Attribute) -> _Own:
        """As `parse`, from an attribute that was read."""

    @classmethod
    def from_gluon(cls: type[_Own], layout: Any) -> _Own:
        """From an object of the Gluon class `GLUON`, which calls all as the fields here are called.
        Raises LayoutError."""
        given = {each.name: getattr(layout, each.name) for each in fields(cast(Any, cls))}
        return cls(**{name: () if value is None else value for name, value in given.items()})

    def gluon_arguments(self) -> dict[str, Any]:
        """The arguments of the Gluon class `GLUON` that make the same. Raises LayoutError."""
        return {each.name: as_lists(getattr(self, each.name)) for each in fields(cast(Any, self))}

    @property
    @abstractmethod
    def rank(self) -> int:
        """How many dimensions."""

    @property
    @abstractmethod
    def alignment(self) -> int:
        """What the address of a tile must be a multiple of, in bytes."""

    @abstractmethod
    def to_linear_layout(self, shape: Sequence[int] | None) -> LinearLayout:
        """The linear layout of a tile: ``offset`` (elements; ``block`` with a cluster) ->
        ``dim0``, ``dim1``, ...

        Args:
            shape: of the tensor, over all blocks; None for the shape that the encoding says.

        Raises:
            LayoutError: a shape that this encoding does not lay out, or none where it needs one.
        """

    @abstractmethod
    def stored_elements(self, shape: Sequence[int]) -> int:
        """How many elements of shared memory a tile takes in one block, padding included."""

    def address(self, offset: Any) -> Any:
        """Where the element at an offset of the linear layout lies in the memory of its block.

        Args:
            offset: in elements; an integer or an array of integers.

        Returns:
            The offset with the paddings before it, in elements.
        """
        return padded_offset(offset, self.paddings)

    def offset_at(self, address: int, offsets: int) -> int | None:
        """The offset at an address (elements) in a tile of so many offsets; None for padding."""
        offset = bisect_right(range(offsets), address, key=self.address) - 1
        return offset if self.address(offset) == address else None


def as_lists(value: Any) -> Any:
    """Tuples, and those in them, as lists, as Gluon takes them; any other value as it is."""
    return list(map(as_lists, value)) if isinstance(value, tuple) else value


def padded_offset(offset: Any, paddings: Paddings) -> Any:
    """Where an offset lies with paddings between, in elements; integers or arrays of them."""
    return offset + sum(offset // interval * padding for interval, padding in paddings)


def checked_encoding(argument: str, value: Any) -> SharedEncoding:
    """The value, if it is an encoding. Raises LayoutError: it is something else; the rule says how
    an encoding is made of it."""
    if isinstance(value, SharedEncoding):
        return value
    raise LayoutError(argument, value, "must be a shared-memory encoding" + way_out(value))


def checked_kind(argument: str, value: Any, kind: type[_Own]) -> _Own:
    """The value, if it is an encoding of that class. Raises LayoutError, as `checked_encoding`."""
    if isinstance(value, kind):
        return value
    raise LayoutError(argument, value, f"must be of class {kind.__name__}" + way_out(value))


def checked_layout(argument: str, value: Any) -> LinearLayout:
    """The value, if it is a linear layout. Raises LayoutError: it is something else; the rule says
    how a layout is made of it."""
    if isinstance(value, LinearLayout):
        return value
    rule = "must be a LinearLayout" + way_out(value, ".to_linear_layout(shape)")
    raise LayoutError(argument, value, rule)


def way_out(value: Any, then: str = "") -> str:
    """How an encoding is made of what was given instead; with `then`, a layout. "" if by nothing.

    To be put behind the rule of a `LayoutError`.
    """
    if isinstance(value, SharedEncoding):
        return f": encoding{then} makes one" if then else ""
    if type(value).__module__.startswith("triton.experimental.gluon"):
        return f": triton_ext.interop.from_gluon(layout){then} makes one of a Gluon layout"
    if isinstance(value, str) and value.lstrip().startswith("#"):
        return f": triton_ext.parse_encoding(text){then} makes one of an attribute"
    return ""
