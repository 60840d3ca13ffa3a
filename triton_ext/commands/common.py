"""What the commands share: options and their types, output, errors on one line, scripts.

Exit status: 0; 1 for a fault that was found (`click.ClickException`); 2 for a command that cannot
be carried out as it was given (`click.UsageError`, `LayoutError`).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import math
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click
from click.shell_completion import CompletionItem

from triton_ext.errors import LayoutError, PassError
from triton_ext.findings import Finding, sarif
from triton_ext.layouts.atoms import MAJORS
from triton_ext.layouts.attributes import parse_value
from triton_ext.layouts.encodings import ELEMENT_BITWIDTHS, SWIZZLE_BYTE_WIDTHS, NVMMAShared
from triton_ext.render.words import plain

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # no generic before click 8.3

DTYPES = {
    "fp64": 64, "int64": 64, "fp32": 32, "tf32": 32, "int32": 32, "fp16": 16, "bf16": 16,
    "int16": 16, "e4m3": 8, "e5m2": 8, "int8": 8,
}  # fmt: skip
"""Types of elements, and their bits; packed 4-bit types are bytes (--fp4-padded)."""
JSON_VERSION = 1
"""The first key of each command's JSON; a key that goes or changes its meaning raises it."""
INSTALL = (
    "install both: pip install triton torch (or, from a checkout, pip install '.[kernels]');"
    " without a GPU, torch's CPU build suffices, from the index of CPU wheels that PyTorch's page"
    ' "Get Started" names for pip (--index-url)'
)
_Command = Callable[..., Any]
_Decorator = Callable[[_Command], _Command]


class CommandGroup(click.Group):
    """A group that imports a command when it is used, and whose errors are one line.

    Args:
        modules: for each command, the module that has it, under the command's name.

    Errors go to stderr.
    """

    def __init__(self, *args: Any, modules: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.modules:
            return None
        module = importlib.import_module(self.modules[cmd_name])
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def main(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["standalone_mode"] = False
        try:
            status = super().main(*args, **kwargs)
        except click.Abort:
            _stop("aborted", 130)
        except click.ClickException as error:
            _stop(error.format_message(), error.exit_code)
        except LayoutError as error:
            _stop(str(error), 2)
        except OSError as error:
            if error.filename is not None:
                _stop(f"{error.filename}: {error.strerror}", 2)
            # A full disk: what was not written must not be tried again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            _stop(f"cannot write the output: {error.strerror}", 2)
        except ImportError as error:
            _stop(unimportable(error), 2)
        sys.exit(status if isinstance(status, int) else 0)


def _stop(message: str, status: int) -> NoReturn:
    say(f"triton-ext: {' '.join(message.split())}", err=True)
    sys.exit(status)


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
            shown = value if len(value) <= 80 else f"{value[:77]}..."
            self.fail(f"{shown!r} is no {self.wanted}", param, ctx)


def integers(base: int = 10, holes: bool = False) -> Callable[[str], tuple[int | None, ...]]:
    """Reads ``0,128,256`` as (0, 128, 256); with `holes`, ``-`` as None."""
    return lambda text: tuple(
        None if holes and part.strip() == "-" else int(part, base) for part in text.split(",")
    )


SHAPE = Parsed("SHAPE", lambda text: tuple(map(int, text.split("x"))), "shape; write it as 128x256")
"""``128x256`` -> (128, 256)."""
BASES = Parsed("BASES", parse_value, "list of bases; write it as [[1, 0], [0, 1]]")
"""``[[1, 0], [0, 1]]`` -> lists of integers."""


class Target(_ParamType):
    """The type of an option that names an architecture to run or compile for; or other words.

    With `of_kernels` it must be one that this project has kernels for.
    """

    name = "ARCH"

    def __init__(self, *others: str, of_kernels: bool = False) -> None:
        self.others, self.of_kernels = others, of_kernels

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        from triton_ext.hardware.architecture import target_number

        if value in self.others:
            return value
        number = target_number(value)
        if self.of_kernels and number not in (90, 100):
            raise LayoutError("arch", value, "must be sm_90 or sm_100: there are kernels of those")
        return f"sm_{number}"

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        from triton_ext.hardware.architecture import CAPABILITIES

        names = (*(f"sm_{number}" for number in CAPABILITIES), *self.others)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class Seconds(click.FloatRange):
    """The type of an option that limits a time: what timers can count."""

    def __init__(self, min_open: bool = False) -> None:
        super().__init__(0, 1e9, min_open=min_open)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):  # which no range excludes
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return seconds


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
    """An NVMMA encoding as options describe it.

    They are --swizzle, --bits or --dtype, --transposed or --major, and --fp4-padded.

    Attributes:
        swizzle: the swizzle width in bytes; None for the widest that fits the tile.
        bits: the width of an element; None where another argument says it.
        transposed: whether the first dimension is the contiguous one.
        fp4_padded: whether the elements have 4 bits, padded.
        dtype, major: as they were given, if they were.
    """

    swizzle: int | None
    bits: int | None
    transposed: bool
    fp4_padded: bool = False
    dtype: str | None = None
    major: str | None = None

    def given(self, *, bits: bool = False) -> dict[str, bool]:
        """Whether each of the options is used; --bits and --dtype are there only on request."""
        widths = {
            "--bits": self.bits is not None and self.dtype is None,
            "--dtype": self.dtype is not None,
        }
        return {
            "--swizzle": self.swizzle is not None,
            **(widths if bits else {}),
            "--transposed": self.transposed and self.major is None,
            "--major": self.major is not None,
            "--fp4-padded": self.fp4_padded,
        }

    def encoding(self, shape: Sequence[int] | None, cga: Any = ()) -> NVMMAShared:
        """The encoding of a tile. `shape`: the tile's; None for rank 2, which needs a swizzle.
        `cga`: bases of the cluster's blocks. Raises LayoutError: the description is illegal."""
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
    """The options that describe an NVMMA encoding, given to the command as a `Description`. `bits`:
    the element widths on offer. `bits_required`: whether nothing but --bits or --dtype says them.
    `fp4_padded`: --fp4-padded, too."""
    options = [
        click.option(
            "--swizzle",
            type=choices(SWIZZLE_BYTE_WIDTHS),
            help="Swizzle width in bytes; 0 stores the tile row by row. Left out: the widest that"
            " fits.",
        ),
        click.option("--bits", type=choices(bits), help="Bits of an element."),
        click.option(
            "--dtype",
            type=choices(name for name, width in DTYPES.items() if width in bits),
            help="An element's type, instead of its bits.",
        ),
        click.option(
            "--transposed", is_flag=True, help="The first dimension is the contiguous one."
        ),
        click.option(
            "--major",
            type=choices(MAJORS),
            help="The contiguous dimension of a tile (M, K): MN is --transposed.",
        ),
    ]
    if fp4_padded:
        options.append(
            click.option("--fp4-padded", is_flag=True, help="Padded 4-bit elements, two a byte.")
        )

    def decorate(command: _Command) -> _Command:
        @wraps(command)
        def described(
            swizzle: str | None, bits: str | None, dtype: str | None, transposed: bool,
            major: str | None, fp4_padded: bool = False, **others: Any,
        ) -> Any:  # fmt: skip
            width, element = (None if text is None else int(text) for text in (swizzle, bits))
            if dtype is not None:
                if element not in (None, DTYPES[dtype]):
                    raise click.UsageError(f"--dtype {dtype} has {DTYPES[dtype]} bits, not {bits}")
                element = DTYPES[dtype]
            if bits_required and element is None:
                raise click.UsageError("give the width of an element: --bits, or --dtype")
            if major is not None:
                first = "K" if others.get("operand") == "b" else "MN"  # of B, a tile is (K, N)
                if transposed and major != first:
                    raise click.UsageError(f"--transposed is --major {first}, not {major}")
                transposed = major == first
            return command(
                Description(width, element, transposed, fp4_padded, dtype, major), **others
            )

        for option in reversed(options):
            described = option(described)
        return described

    return decorate


def refuse(given: Mapping[str, bool], reason: str) -> None:
    """Refuse the options that are given. Raises click.UsageError: "--a, --b cannot be used
    `reason`"."""
    names = ", ".join(name for name, used in given.items() if used)
    if names:
        raise click.UsageError(f"{names} cannot be used {reason}")


def time_limited(command: _Command) -> _Command:
    """The option --timeout: how long a command may take."""

    @click.option(
        "--timeout",
        type=Seconds(),
        default=120,
        show_default=True,
        help="Stop after so many seconds; 0: never.",
    )
    @wraps(command)
    def limited(*arguments: Any, timeout: float, **others: Any) -> Any:
        def expired(number: int, frame: FrameType | None) -> None:
            raise LayoutError("timeout", timeout, "the input takes longer; allow it more seconds")

        previous = signal.signal(signal.SIGALRM, expired)
        signal.setitimer(signal.ITIMER_REAL, timeout)
        try:
            return command(*arguments, **others)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)

    return limited


# ------------------------------------------------------------------------ output


def say(
    text: str, *, err: bool = False, coloured: bool = False, file: TextIO | None = None
) -> None:
    """Print a text of any origin: escape sequences and other control characters are shown, and so
    is what the encoding of the output lacks. `coloured`: the text has colours of ours, and control
    characters of nobody else; NO_COLOR switches them off. `file`: where, if neither on stdout nor
    on stderr."""
    colour = False if os.environ.get("NO_COLOR") else None
    shown = text if coloured else plain(text)
    try:
        click.echo(shown, file, err=err, color=colour)
    except UnicodeEncodeError as error:
        escaped = shown.encode(error.encoding, "backslashreplace").decode(error.encoding)
        click.echo(escaped, file, err=err, color=colour)


def show(form: str, *, err: bool = False, **renderers: Callable[[], Any]) -> None:
    """Print a result in the form that is asked for. `renderers`: for each form, what makes the
    output: a text or its lines; for "json", an object, which is printed with its version, or a text
    that has one. Only the one that is asked for is called."""
    found = renderers[form]()
    if form == "json" and not isinstance(found, str):
        found = json.dumps({"version": JSON_VERSION, **found}, indent=2)
    text = found if isinstance(found, str) else "\n".join(found)
    say(text, err=err, coloured=form == "grid")


def rendering(function: str, *arguments: Any, **options: Any) -> Callable[[], str]:
    """For `show`: a call of a function of `triton_ext.render`, such as ``svg.atom_svg``.

    Its module is imported by the call: the template engine takes a while to import.
    """
    module, _, name = function.partition(".")

    def call() -> str:
        draw = getattr(importlib.import_module(f"triton_ext.render.{module}"), name)
        return str(draw(*arguments, **options))

    return call


def show_sarif(findings: Iterable[Finding], *, completed: bool = True) -> None:
    """Print findings as a SARIF log on stdout; `completed`: the program ran to its end, or to one
    of them."""
    say(json.dumps(sarif(findings, completed=completed), indent=2))


def unimportable(error: ImportError) -> str:
    """What an import lacks, and what to do about it."""
    package = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or not package:
        return f"cannot import {error.name or 'a module'}: {error}"
    if package in ("torch", "triton"):
        return f"this needs Triton and torch, and there is no module {error.name}; {INSTALL}"
    if package == "triton_ext":
        return (
            f"the module {error.name} is missing from this installation: install triton-layouts"
            " again"
        )
    return f"there is no module {error.name}: install the package that has it"


@contextlib.contextmanager
def needing_kernels() -> Iterator[None]:
    """For imports of torch and Triton: the error says which module is missing."""
    try:
        yield
    except ImportError as error:
        raise click.UsageError(unimportable(error)) from None


@contextlib.contextmanager
def results_apart() -> Iterator[TextIO]:
    """Within it, stdout has what is written to the stream that it yields, and nothing else.

    What a script and its children print goes to stderr.
    """
    stdout = sys.stdout
    if stdout is None:  # closed
        with open(os.devnull, "w") as nothing:
            yield nothing
        return
    stdout.flush()
    try:
        number = stdout.fileno()
    except io.UnsupportedOperation:  # no file, as in a notebook: no child prints there
        with contextlib.redirect_stdout(sys.stderr):
            yield stdout
        return
    results = os.fdopen(os.dup(number), "w", encoding=stdout.encoding, errors=stdout.errors)
    with results, contextlib.redirect_stdout(sys.stderr):
        os.dup2(sys.stderr.fileno(), number)
        try:
            yield results
        finally:
            stdout.flush()
            os.dup2(results.fileno(), number)


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


def run_script(path: str, arguments: Sequence[str] = (), name: str = "__main__") -> dict[str, Any]:
    """Run a Python script as ``python path arguments`` would; returns its names. Raises
    click.UsageError: it is no text, or in an encoding that Python does not know; Exception:
    whatever it raises."""
    data = Path(path).read_bytes()
    try:
        source = importlib.util.decode_source(data)
    except (UnicodeDecodeError, SyntaxError) as error:
        source = "\0"
        if b"\0" not in data and isinstance(error, SyntaxError):
            raise click.UsageError(f"{path} is no Python script: {error.msg}") from None
    if "\0" in source:
        raise click.UsageError(f"{path} is no Python script, but a binary file")
    with script_environment(path, arguments):
        return runpy.run_path(path, run_name=name)


def script_traceback(error: BaseException, path: str) -> str:
    """The traceback of what a script raised, with the frames of the files in its folder alone."""
    whole = traceback.TracebackException.from_exception(error)
    folder = f"{Path(path).resolve().parent}{os.sep}"

    def is_own(file: str) -> bool:
        if file.startswith("<"):  # such as <frozen runpy>
            return False
        where = str(Path(file).resolve())
        return where.startswith(folder) and f"{os.sep}site-packages{os.sep}" not in where

    if isinstance(error, SyntaxError) and not any(is_own(frame.filename) for frame in whole.stack):
        return "".join(whole.format_exception_only()).rstrip()  # of the script itself
    todo: list[traceback.TracebackException | None] = [whole]
    while todo:
        one = todo.pop()
        if one is not None:
            own = [frame for frame in one.stack if is_own(frame.filename)]
            one.stack[:] = own or one.stack
            todo += [one.__cause__, one.__context__]
    return "".join(whole.format()).rstrip()


def pass_failed(error: PassError) -> NoReturn:
    """Say what a pass found or why it failed, line by line, and end."""
    say(f"triton-ext: {error}", err=True)
    raise SystemExit(1) from None


def script_failed(error: BaseException, path: str) -> NoReturn:
    """Say what a script raised, and end."""
    say(script_traceback(error, path), err=True)
    raise SystemExit(1) from None
