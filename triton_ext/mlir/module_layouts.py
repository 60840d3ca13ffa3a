"""The linear layouts of a printed module: what the ``layout`` command shows of one."""

from __future__ import annotations

from dataclasses import replace

from triton_ext.errors import LayoutError
from triton_ext.layouts.dump import LayoutDump, dump_encoding
from triton_ext.layouts.encodings import parse_encoding
from triton_ext.mlir.attributes import shared_types
from triton_ext.mlir.types import MemoryType, bits_of


def _dump_type(use: MemoryType) -> LayoutDump:
    shape = use.allocated  # a view (memdesc_subslice) is a part of it: the whole is laid out
    bits = bits_of(use.element)
    try:
        encoding = parse_encoding(use.encoding)
        shape = shape[len(shape) - encoding.rank :]  # leading dimensions count buffers
        made = dump_encoding(encoding, shape)
    except LayoutError as problem:
        return LayoutDump("tile", use.encoding, None, shape, bits, use.alias, str(problem))
    return replace(made, encoding=use.encoding, element_bitwidth=bits, alias=use.alias)


def dump_module(text: str) -> list[LayoutDump]:
    """A dump for each shared encoding and shape in a printed module, in order of appearance.

    What cannot be converted (another vendor's encoding, say) has its `error` set. Raises
    LayoutError: a type in the module cannot be read.
    """
    return list(dict.fromkeys(map(_dump_type, shared_types(text))))
