"""``triton-ext compile``: kernels through Triton's compiler and the passes, without a run."""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, TextIO
from unittest import mock

import click
from click.core import ParameterSource

from triton_ext.commands.common import (
    Target,
    choices,
    format_option,
    needing_kernels,
    pass_failed,
    refuse,
    results_apart,
    run_script,
    say,
    script_failed,
    show_sarif,
)
from triton_ext.errors import LayoutError, PassError
from triton_ext.findings import Finding, annotate
from triton_ext.splitting import split_arguments

_WARPS = choices([1, 2, 4, 8, 16, 32])
_CTAS = choices([1, 2, 4, 8, 16])
_WITH_SIGNATURE = "With --signature."


def _complete_passes(context: Any, option: Any, typed: str) -> list[str]:
    """The passes that may stand behind the last comma."""
    with needing_kernels():
        from triton_ext.passes import all_passes
    before, comma, begun = typed.rpartition(",")
    names = [each.name for each in all_passes()]
    return [f"{before}{comma}{name}" for name in names if name.startswith(begun)]


def _launch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that a launch would say, given to the command as `launch`."""

    @click.option("--num-warps", type=_WARPS, default="4", show_default=True, help=_WITH_SIGNATURE)
    @click.option("--num-ctas", type=_CTAS, default="1", show_default=True, help=_WITH_SIGNATURE)
    @click.option(
        "--num-stages",
        type=click.IntRange(1, 64),  # with billions the compiler takes all memory
        default=3,
        show_default=True,
        help=_WITH_SIGNATURE,
    )
    @wraps(command)
    def launched(
        *arguments: Any, num_warps: str, num_ctas: str, num_stages: int, **others: Any
    ) -> Any:
        launch = {
            "num_warps": int(num_warps), "num_ctas": int(num_ctas), "num_stages": num_stages
        }  # fmt: skip
        return command(*arguments, launch=launch, **others)

    return launched


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True})
@click.option(
    "--passes",
    default="",
    metavar="PASSES",
    help="Such as 'report-layouts{format=json},lint-shared'; of a file or a module:"
    " checks.py::name, package.module:name.",
    shell_complete=_complete_passes,
)
@click.option(
    "--list", "list_", is_flag=True, help="List the passes, those of --passes too, and options."
)
@click.option(
    "--target",
    type=Target(),
    default="sm_100",
    show_default=True,
    help="The GPU: sm_90, sm_100, sm_120 ...",
)
@click.option("--signature", help="Types and constants of the kernel's arguments; see above.")
@_launch_options
@click.option(
    "--emit",
    type=choices(["ttir", "ttgir", "llir", "ptx"]),
    help="Print this stage on stdout, and all else on stderr.",
)
@click.option(
    "--sass",
    is_flag=True,
    help="Check the machine code: registers of a wgmma's A that are written before its wait.",
)
@format_option(
    "text", "sarif", text="sarif: a log of what the passes find on stdout, all else on stderr."
)
@click.argument("script", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def compile(
    context: click.Context, passes: str, list_: bool, target: str, signature: str | None,
    launch: dict[str, int], emit: str | None, sass: bool, form: str, script: str | None,
    arguments: tuple[str, ...],
) -> None:  # fmt: skip
    """Compile the Triton and Gluon kernels of SCRIPT, or of SCRIPT::KERNEL, and run none.

    Needs no GPU. Without --signature, the script runs as ever, on the host, and each kernel that
    it launches is compiled but not executed. With --signature, KERNEL alone is compiled: the
    signature has an item for each argument, a type ("*fp16", "i32", "fp32"; ":16" behind it for
    what is divisible by 16), a constant ("64", "True", "None"), or an expression of the script's
    names after "=" ("=gl.NVMMASharedLayout(128, 16)"). In a job of GitHub Actions, what the passes
    find becomes annotations.

    On stdout is what is asked for: the stage of --emit, else the reports of --passes, else a line
    for each kernel. What the script prints, and remarks, are on stderr.

    \b
    Examples:
      triton-ext compile attention.py --passes report-layouts
      triton-ext compile matmul.py::matmul_kernel --target sm_90 --passes verify-descriptors
      triton-ext compile matmul.py --passes 'checks.py::no-fp32-products,lint-shared'
      triton-ext compile add.py::add --signature '*fp32:16, *fp32:16, i32, 1024' --emit ptx
      triton-ext compile matmul.py --passes lint-shared --format sarif > matmul.sarif
      triton-ext compile matmul.py --target sm_90 --sass
      triton-ext compile --list
    """
    with needing_kernels():
        from triton_ext.passes import Results, enabled
        from triton_ext.passes.frame.reports import reports_on
    if list_:
        refuse(
            {"SCRIPT": script is not None, "--emit": emit is not None},
            "with --list, which compiles nothing",
        )
        _list(passes)
        return
    if script is None:
        raise click.UsageError("a script is needed, or --list")
    path, _, kernel = script.partition("::")
    if not Path(path).is_file():
        raise click.BadParameter(f"there is no file {path}", param_hint="SCRIPT")
    if signature is not None and not kernel:
        raise click.UsageError("--signature needs SCRIPT::KERNEL")
    tuned = {
        name: context.get_parameter_source(name.strip("-").replace("-", "_"))
        is ParameterSource.COMMANDLINE
        for name in ("--num-warps", "--num-ctas", "--num-stages")
    }
    if signature is None:
        refuse(tuned, "without --signature; the script's launches say it")
    if form == "sarif" and emit:
        raise click.UsageError("--emit and --format sarif both print on stdout: give one of them")
    results, faults = Results(), list[Finding]()
    try:
        with (
            results_apart() as stdout,
            reports_on(sys.stderr if emit or form == "sarif" else stdout),
            enabled(*([passes] if passes else [])) as results,
            _listening(
                kernel,
                emit,
                sys.stderr if passes or form == "sarif" else stdout,
                stdout,
                faults if sass else None,
            ) as seen,
        ):
            if signature is None:
                _run_idle(path, arguments, target)
            else:
                _compile_one(path, kernel, signature, target, launch)
    except PassError as error:
        _found(results.findings() + error.findings(), form)
        pass_failed(error)
    except SystemExit as error:
        _found(results.findings(), form, completed=not error.code)
        raise
    _found(results.findings() + faults, form)
    if not seen:
        raise click.UsageError(f"{path} launches no kernel" + f" {kernel}" * bool(kernel))
    if emit and len(seen) > 1:
        names = ", ".join(f"{name} ({seen.count(name)} x)" for name in dict.fromkeys(seen))
        say(f"several kernels in one output: {names}; SCRIPT::KERNEL picks one", err=True)
    for fault in faults:
        at = f"{fault.location.file}:{fault.location.line}: " if fault.location else ""
        say(f"{at}{fault.level}: {fault.message}", err=True)
    if faults:
        raise SystemExit(1)


def _list(passes: str) -> None:
    """Print the passes that have a name, and those that are named."""
    from triton_ext.passes import all_passes, parse_passes

    try:
        named = [each.compiler_pass for each in parse_passes(passes)]
    except PassError as error:
        pass_failed(error)
    for each in dict.fromkeys([*all_passes(), *named]):
        say(f"{each.configured()} (after {each.stage})\n    {each.description}")
        for name, default in vars(each.options()).items():
            say(f"    {name}={default}")


def _found(findings: list[Finding], form: str, *, completed: bool = True) -> None:
    """Annotate what the passes found, and print it as SARIF, if that is asked for."""
    annotate(findings)
    if form == "sarif":
        show_sarif(findings, completed=completed)


@contextlib.contextmanager
def _listening(
    kernel: str, emit: str | None, lines: TextIO, results: TextIO, faults: list[Finding] | None
) -> Iterator[list[str]]:
    """Print a line for each kernel that is compiled, or the stage that is asked for. `lines`: where
    the line goes, if no stage is asked for; else it is on stderr. `results`: where the stage goes.
    `faults`: to which those of the machine code are added; None if it is not to be checked."""
    from triton import knobs

    seen: list[str] = []
    previous = knobs.compilation.listener

    def listen(**event: Any) -> None:
        if previous:
            previous(**event)
        metadata, files = event["metadata"], event["metadata_group"]
        name = metadata["name"]
        if kernel and name != kernel:
            return
        seen.append(name)
        text = [Path(path).read_text() for file, path in files.items() if file.endswith(f".{emit}")]
        if emit:
            say("".join(text), file=results)
        target = metadata["target"]
        say(
            f"{name}: sm_{getattr(target, 'arch', None) or target['arch']},"
            f" {metadata['num_warps']} warps, {metadata['shared']} bytes of shared memory",
            file=sys.stderr if emit else lines,
        )
        if faults is not None:
            from triton_ext.commands.sass import check_cubin

            for file, path in files.items():
                if file.endswith(".cubin"):
                    faults.extend(check_cubin(Path(path), name))

    knobs.compilation.listener = listen
    try:
        yield seen
    finally:
        knobs.compilation.listener = previous


def _run_idle(path: str, arguments: tuple[str, ...], target: str) -> None:
    """Run a script on a GPU that compiles what is launched, and executes nothing."""
    from triton.compiler.errors import CompilationError

    from triton_ext.emulator.errors import WrongArchitecture
    from triton_ext.emulator.host.emulate import emulate

    with emulate(target, cuda_on_host=True, idle=True) as gpu, _uncompared():
        try:
            run_script(path, arguments)
        except (PassError, click.UsageError):
            raise
        except (CompilationError, WrongArchitecture) as error:
            _refused(error)
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) and not error.code:
                return
            if isinstance(error, BrokenPipeError) or not gpu.launches:
                script_failed(error, path)
            # A script that checks its results finds them wrong: nothing ran.
            stopped = f"{type(error).__name__}: {error}".splitlines()[0]
            say(
                f"{path} stopped, as no kernel ran and there were no results: {stopped}; what it"
                " would launch from there on is not compiled",
                err=True,
            )
        finally:
            # Kernels of the script unload themselves through the driver, which must still be
            # there; and not while Python 3.11 parses: that would break its parser.
            gc.collect()


_COMPARISONS = {
    "torch.testing": ("assert_close",),
    "numpy.testing": (
        "assert_allclose", "assert_array_equal", "assert_equal", "assert_almost_equal",
        "assert_array_almost_equal",
    ),
}  # fmt: skip
"""Functions that compare results, and raise where they differ."""


@contextlib.contextmanager
def _uncompared() -> Iterator[None]:
    """Within it, torch's and numpy's functions that compare results compare none: nothing ran."""
    told = False

    def skip(*arguments: Any, **options: Any) -> None:
        nonlocal told
        if not told:
            say("no kernel runs: comparisons of results are skipped", err=True)
        told = True

    with contextlib.ExitStack() as patched:
        for module, names in _COMPARISONS.items():
            found = importlib.import_module(module)
            for name in names:
                patched.enter_context(mock.patch.object(found, name, skip))
        yield


def _compile_one(
    path: str, kernel: str, signature: str, target: str, options: dict[str, Any]
) -> None:
    """Compile one kernel of a script for the argument types of a signature."""
    from triton.compiler.errors import CompilationError
    from triton.language import pointer_type, str_to_ty

    from triton_ext.compat import compile_kernel

    try:
        names = run_script(path, sys.argv[1:], "triton_ext_compile")
    except click.UsageError:
        raise
    except Exception as error:
        script_failed(error, path)
    function = names.get(kernel)
    if function is None or not hasattr(function, "arg_names"):
        found = ", ".join(name for name, value in names.items() if hasattr(value, "arg_names"))
        raise LayoutError("kernel", kernel, f"must be a kernel of {path}: {found or 'it has none'}")
    items = split_arguments(signature)
    if len(items) != len(function.arg_names):
        wanted = ", ".join(function.arg_names)
        raise LayoutError("signature", signature, f"must have an item for each of {wanted}")
    types: dict[str, str] = {}
    constants: dict[str, Any] = {}
    multiples: list[str] = []
    for name, item in zip(function.arg_names, items, strict=True):
        type_, _, multiple = (item, "", "") if "tensordesc" in item else item.partition(":")
        if item.startswith("=") or item in ("True", "False", "None") or _is_number(item):
            try:
                constants[name] = eval(item.removeprefix("="), names)
            except Exception as error:
                raise LayoutError(f"signature.{name}", item, f"is no expression: {error}") from None
            types[name] = "constexpr"
        else:
            if multiple not in ("", "1", "16"):
                raise LayoutError(f"signature.{name}", item, "behind ':' there may be 16")
            types[name] = type_.strip()
            multiples += [name] * (multiple == "16")
            try:
                read = str_to_ty(types[name], None)
                if isinstance(read, pointer_type) and isinstance(read.element_ty, pointer_type):
                    raise TypeError  # at a pointer to pointers the compiler would abort
            except Exception:
                rule = "is no type that Triton knows, such as *fp16, i32 or fp32"
                raise LayoutError(f"signature.{name}", item, rule) from None
    try:
        compile_kernel(
            function, types, constants, target=target, multiples_of_16=multiples, **options
        )
    except (CompilationError, RuntimeError) as error:  # the latter of MLIR, which has said why
        _refused(error)


def _refused(error: Exception) -> NoReturn:
    """Say what Triton's compiler says: its lines, and the caret below the one that is wrong."""
    say(f"triton-ext: the kernel does not compile: {error}", err=True)
    raise SystemExit(1) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
