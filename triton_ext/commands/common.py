"""What the commands share: argument types, and errors on one line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from triton_ext.errors import LayoutError
from triton_ext.layouts.attributes import parse_value
from triton_ext.layouts.encodings import ELEMENT_BITWIDTHS, SWIZZLE_BYTE_WIDTHS, NVMMAShared

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # no generic before click 8.3


class CommandGroup(click.Group):
    """A group that imports a command when it is used, and whose errors are one line.

    Args:
        modules: for each command, the module that has it, under the command's name.

    Errors go to stderr, with exit status 2.
    """

    def __init__(self, *args: Any, modules: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.modules:
            return None
        command = getattr(importlib.import_module(self.modules[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def main(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["standalone_mode"] = False
        try:
            status = super().main(*args, **kwargs)
        except click.Abort:
            click.echo("triton-ext: aborted", err=True)
            sys.exit(130)
        except (click.ClickException, LayoutError) as error:
            said = error.format_message() if isinstance(error, click.ClickException) else str(error)
            click.echo(f"triton-ext: {' '.join(said.split())}", err=True)
            sys.exit(2)
        sys.exit(status if isinstance(status, int) else 0)


class ShapeType(_ParamType):
    """``128x256`` -> (128, 256)."""

    name = "SHAPE"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(size) for size in value.split("x"))
        except ValueError:
            self.fail(f"{value!r} is no shape; write it as 128x256", param, ctx)


class BasesType(_ParamType):
    """``[[1, 0], [0, 1]]`` -> lists of integers."""

    name = "BASES"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return parse_value(value) if isinstance(value, str) else value
        except LayoutError:
            self.fail(f"{value!r} is no list of bases; write it as [[1, 0], [0, 1]]", param, ctx)


_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def encoding_options(
    *,
    bits: Sequence[int] = ELEMENT_BITWIDTHS,
    bits_required: bool = False,
    fp4_padded: bool = False,
) -> _Decorator:
    """The options that describe an NVMMA encoding: --swizzle, --bits, --transposed.

    Args:
        bits: the element widths on offer.
        bits_required: whether there is no other way to give them.
        fp4_padded: --fp4-padded, too.

    `described_encoding` makes an encoding of their values.
    """
    options = [
        click.option(
            "--swizzle",
            type=click.Choice([str(width) for width in SWIZZLE_BYTE_WIDTHS]),
            help="Swizzle width in bytes; 0 stores the tile row by row. Left out: the widest that"
            " fits.",
        ),
        click.option(
            "--bits",
            type=click.Choice([str(width) for width in bits]),
            required=bits_required,
            help="Bits of an element.",
        ),
        click.option(
            "--transposed", is_flag=True, help="The first dimension is the contiguous one."
        ),
    ]
    if fp4_padded:
        options.append(
            click.option("--fp4-padded", is_flag=True, help="Padded 4-bit elements, two a byte.")
        )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def described_encoding(
    shape: Sequence[int],
    swizzle: str | None,
    bits: str | int,
    transposed: bool,
    fp4_padded: bool = False,
    cga: Any = (),
) -> NVMMAShared:
    """The encoding of a tile that `encoding_options` describe.

    Raises:
        LayoutError: they are illegal.
    """
    if swizzle is None:
        return NVMMAShared.default_for(shape, int(bits), transposed, fp4_padded, cga)
    return NVMMAShared(int(swizzle), int(bits), transposed, fp4_padded, len(shape), cga)
