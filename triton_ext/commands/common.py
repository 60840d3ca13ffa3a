"""What the commands share: options and their types, output, errors on one line, scripts."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from triton_ext.errors import LayoutError
from triton_ext.layouts.attributes import parse_value
from triton_ext.layouts.encodings import ELEMENT_BITWIDTHS, SWIZZLE_BYTE_WIDTHS, NVMMAShared

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # no generic before click 8.3

_Command = Callable[..., Any]
_Decorator = Callable[[_Command], _Command]


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


# ------------------------------------------------------------------------ options


class Parsed(_ParamType):
    """The type of an option that one function reads.

    Args:
        name: what the help calls it, in capitals.
        read: text -> value; raises ValueError.
        wanted: ends the error message "'...' is no ...".
    """

    def __init__(self, name: str, read: Callable[[str], Any], wanted: str) -> None:
        self.name = name
        self.read = read
        self.wanted = wanted

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except ValueError:
            self.fail(f"{value!r} is no {self.wanted}", param, ctx)


def integers(base: int = 10, holes: bool = False) -> Callable[[str], tuple[int | None, ...]]:
    """Reads ``0,128,256`` as (0, 128, 256); with `holes`, ``-`` as None."""
    return lambda text: tuple(
        None if holes and part.strip() == "-" else int(part, base) for part in text.split(",")
    )


SHAPE = Parsed("SHAPE", lambda text: tuple(map(int, text.split("x"))), "shape; write it as 128x256")
"""``128x256`` -> (128, 256)."""
BASES = Parsed("BASES", parse_value, "list of bases; write it as [[1, 0], [0, 1]]")
"""``[[1, 0], [0, 1]]`` -> lists of integers."""


def choices(values: Iterable[object]) -> click.Choice[str]:
    """A choice among the texts of some values."""
    return click.Choice([str(value) for value in values])


def format_option(*forms: str, text: str | None = None) -> _Decorator:
    """The option --format, "text" unless told otherwise; `text` is its help."""
    return click.option(
        "--format", "form", type=click.Choice(forms), default="text", show_default=True, help=text
    )


@dataclass(frozen=True)
class Description:
    """An NVMMA encoding as options describe it: --swizzle, --bits, --transposed, --fp4-padded.

    Attributes:
        swizzle: the swizzle width in bytes; None for the widest that fits the tile.
        bits: the width of an element; None where another argument says it.
        transposed: whether the first dimension is the contiguous one.
        fp4_padded: whether the elements have 4 bits, padded.
    """

    swizzle: int | None
    bits: int | None
    transposed: bool
    fp4_padded: bool = False

    def given(self, *, bits: bool = False) -> dict[str, bool]:
        """Whether each of the options is used; --bits is among them only on request."""
        given = {"--swizzle": self.swizzle is not None, "--bits": self.bits is not None}
        given |= {"--transposed": self.transposed, "--fp4-padded": self.fp4_padded}
        return given if bits else {name: used for name, used in given.items() if name != "--bits"}

    def encoding(self, shape: Sequence[int] | None, cga: Any = ()) -> NVMMAShared:
        """The encoding of a tile.

        Args:
            shape: the tile's; None for rank 2, which needs a swizzle.
            cga: bases of the cluster's blocks.

        Raises:
            LayoutError: the description is illegal.
        """
        swizzle, bits, flags = self.swizzle, self.bits, (self.transposed, self.fp4_padded)
        assert bits is not None
        if swizzle is not None:
            rank = 2 if shape is None else len(shape)
            return NVMMAShared(swizzle, bits, *flags, rank, cga)
        assert shape is not None
        return NVMMAShared.default_for(shape, bits, *flags, cga)


def encoding_options(
    *,
    bits: Sequence[int] = ELEMENT_BITWIDTHS,
    bits_required: bool = False,
    fp4_padded: bool = False,
) -> _Decorator:
    """The options that describe an NVMMA encoding, given to the command as a `Description`.

    Args:
        bits: the element widths on offer.
        bits_required: whether there is no other way to give them.
        fp4_padded: --fp4-padded, too.
    """
    options = [
        click.option(
            "--swizzle",
            type=choices(SWIZZLE_BYTE_WIDTHS),
            help="Swizzle width in bytes; 0 stores the tile row by row. Left out: the widest that"
            " fits.",
        ),
        click.option(
            "--bits", type=choices(bits), required=bits_required, help="Bits of an element."
        ),
        click.option(
            "--transposed", is_flag=True, help="The first dimension is the contiguous one."
        ),
    ]
    if fp4_padded:
        options.append(
            click.option("--fp4-padded", is_flag=True, help="Padded 4-bit elements, two a byte.")
        )

    def decorate(command: _Command) -> _Command:
        @wraps(command)
        def described(
            swizzle: str | None, bits: str | None, transposed: bool, fp4_padded: bool = False,
            **others: Any,
        ) -> Any:  # fmt: skip
            width, element = (None if text is None else int(text) for text in (swizzle, bits))
            return command(Description(width, element, transposed, fp4_padded), **others)

        for option in reversed(options):
            described = option(described)
        return described

    return decorate


def refuse(given: Mapping[str, bool], reason: str) -> None:
    """Refuse the options that are given.

    Raises:
        click.UsageError: "--a, --b cannot be used `reason`".
    """
    names = ", ".join(name for name, used in given.items() if used)
    if names:
        raise click.UsageError(f"{names} cannot be used {reason}")


# ------------------------------------------------------------------------ output


def show(form: str, *, err: bool = False, **renderers: Callable[[], Any]) -> None:
    """Print a result in the form that is asked for.

    Args:
        form: "text", "json", ...
        err: on stderr.
        renderers: for each form, what makes the output: a text or its lines; for "json", a value
            or its text. Only the one that is asked for is called.
    """
    found = renderers[form]()
    if form == "json" and not isinstance(found, str):
        found = json.dumps(found, indent=2)
    click.echo(found if isinstance(found, str) else "\n".join(found), err=err)


def rendering(function: str, *arguments: Any, **options: Any) -> Callable[[], str]:
    """For `show`: a call of a function of `triton_ext.render`, such as ``svg.atom_svg``.

    Its module is imported by the call: the template engine takes a while to import.
    """
    module, _, name = function.partition(".")

    def call() -> str:
        draw = getattr(importlib.import_module(f"triton_ext.render.{module}"), name)
        return str(draw(*arguments, **options))

    return call


@contextlib.contextmanager
def needing_kernels() -> Iterator[None]:
    """For imports of torch and Triton: where they are missing, the error says what to install."""
    try:
        yield
    except ImportError as error:
        raise click.ClickException(f"{error}; pip install 'triton-ext[kernels]'") from None


@contextlib.contextmanager
def script_environment(path: str, arguments: Sequence[str] = ()) -> Iterator[None]:
    """``sys.argv`` and ``sys.path`` as ``python path arguments`` sets them."""
    argv, search = sys.argv, list(sys.path)
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, search
