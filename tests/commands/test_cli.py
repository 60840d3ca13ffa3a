"""The command, as a user starts it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from sites import DATA

from triton_ext.cli import main

ATTRIBUTE = (
    "#ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>"
)


def triton_ext(*arguments, **options):
    command = [sys.executable, "-m", "triton_ext", *arguments]
    return subprocess.run(command, capture_output=True, text=True, **options)


def output(*arguments, **options):
    finished = triton_ext(*arguments, **options)
    assert finished.returncode == 0, finished.stderr
    assert not finished.stderr
    return finished.stdout


def test_seed_001_example():
    """Seed 001, "Triton": the bases of the 128-byte atom, by the command."""
    text = output("layout", ATTRIBUTE, "--shape", "128x256", "--core")
    assert text == (
        "Full tensor shape: 128, 256\n"
        f"Layout encoding: {ATTRIBUTE}\n"
        "getCoreMatrixLinearLayout output:\n"
        "- offset=1 -> (0, 1)\n"
        "  offset=2 -> (0, 2)\n"
        "  offset=4 -> (0, 4)\n"
        "  offset=8 -> (0, 8)\n"
        "  offset=16 -> (0, 16)\n"
        "  offset=32 -> (0, 32)\n"
        "  offset=64 -> (1, 8)\n"
        "  offset=128 -> (2, 16)\n"
        "  offset=256 -> (4, 32)\n"
        "where out dims are: [dim0 (size 8), dim1 (size 64)]\n"
    )
    described = output("layout", "--swizzle", "128", "--bits", "16", "--shape", "128x256", "--core")
    assert described == text


def test_descriptions_and_attributes_agree():
    transposed = ATTRIBUTE.replace("false", "true").replace("128", "64")
    by_options = ("--swizzle", "64", "--bits", "16", "--transposed", "--shape", "64x32")
    assert output("layout", *by_options) == output("layout", transposed, "--shape", "64x32")
    assert "CGALayout = [[1, 0], [0, 0]]" in output(
        "layout", "--bits", "16", "--shape", "256x64", "--cga", "[[1,0],[0,0]]"
    )
    padded = output("layout", "--bits", "8", "--fp4-padded", "--shape", "64x64")
    assert "fp4Padded = true" in padded
    assert "swizzlingByteWidth = 128" in output("layout", "--bits", "16", "--shape", "64x64")
    assert "(4, 0)" in output("layout", "--bits", "16", "--shape", "8x64", "--disable-swizzle")


def test_json_goes_in_again(tmp_path):
    arguments = ("layout", "--bits", "16", "--shape", "128x64")
    text = output(*arguments, "--format", "json")
    assert json.loads(text)["version"] == 1
    file = tmp_path / "dump.json"
    file.write_text(text)
    assert output("layout", str(file)) == output(*arguments)
    marked = tmp_path / "marked.json"
    marked.write_text(text, encoding="utf-8-sig")  # with a byte order mark, as Windows writes it
    assert output("layout", str(marked)) == output(*arguments)
    assert output("diff", str(marked), str(file)) == "the same layout\n"
    assert output("layout", str(file), "--format", "json") == text


def test_module(tmp_path):
    file = tmp_path / "kernel.ttgir"
    file.write_text(
        f"#shared = {ATTRIBUTE}\n%0 = ttg.local_alloc : () -> !ttg.memdesc<2x128x64xf16, #shared>\n"
        "%1 = x : !ttg.memdesc<16x16xf16, #ttg.padded_shared<[32:+4] {order = [1, 0]}>>\n"
    )
    text = output("layout", str(file))
    assert "Full tensor shape: 128, 64\nLayout encoding: #shared = #ttg.nvmma_shared" in text
    assert "not converted: attribute = '#ttg.padded_shared" in text
    page = triton_ext("layout", str(file), "--format", "html")
    assert page.stdout.startswith("<!doctype html>")
    assert page.stderr.startswith("not drawn: #ttg.padded_shared")
    grid = output("layout", str(file), "--format", "grid", "--explain")
    assert "#shared at (128, 64)" in grid
    assert "TMA box: 128x64" in grid
    assert "\x1b" not in grid, "colour only on a terminal"


def test_pipe_that_closes(tmp_path):
    command = (
        f"{sys.executable} -m triton_ext layout --bits 16 --shape 4096x4096 --format grid --full"
    )
    finished = subprocess.run(f"{command} | head -n 1", shell=True, capture_output=True, text=True)
    assert finished.stdout.startswith(" dim0")
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--bits", "16", "--shape", "128x250"), "shape[1] = 250: must be a power of two"),
        (("--bits", "16", "--swizzle", "128", "--shape", "4x64"), "8 rows of a swizzle atom"),
        (("--bits", "16", "--shape", "axb"), "'axb' is no shape"),
        (("--bits", "12", "--shape", "8x8"), "'12' is not one of"),
        (("--bits", "16"), "give --shape"),
        (("--bits", "16", "--swizzle", "32"), "give --shape, or --core"),
        ((), "give an attribute or a file, or describe the encoding"),
        (("--bits", "16", "--shape", "8x8", "--cga", "[[1"), "no list of bases"),
        (("--bits", "16", "--shape", "8x8", "--cga", "[[1, 1]]"), "at most one nonzero"),
        ((ATTRIBUTE,), "shape = None: is needed"),
        ((ATTRIBUTE, "--swizzle", "32"), "give an attribute or file, or --swizzle, not both"),
        ((ATTRIBUTE[:-1], "--shape", "8x64"), "expected"),
        (("no-such-file.ttgir",), "neither an attribute"),
        (("no-such-file.ttgir", "--core"), "--core cannot be used with a file"),
        ((sys.executable,), "not a text file"),
        ((__file__,), "uses no shared-memory encoding"),
        (("--nonsense",), "No such option"),
        (("--bits", "16", "--shape", "8x64", "--timeout", "nan"), "'nan' is no number of seconds"),
        (("--bits", "16", "--shape", "8x64", "--timeout", "inf"), "not in the range"),
        (("--bits", "16", "--shape", "8x64", "--timeout", "1e300"), "not in the range"),
        (
            ("#ttg.shared_linear<{offset = [[1]]}, alignment = 16>", "--check"),
            "--check is for nvmma_shared",
        ),
    ],
)
def test_errors_are_one_line_on_stderr_with_status_2(arguments, message):
    finished = triton_ext("layout", *arguments)
    assert finished.returncode == 2
    assert not finished.stdout
    assert finished.stderr.count("\n") == 1
    assert finished.stderr.startswith("triton-ext: ")
    assert message in finished.stderr


@pytest.mark.parametrize("arguments", [["layout", "-"], ["ptx", "-"], ["diff", "-", __file__]])
@pytest.mark.parametrize(
    ("redirection", "message"),
    [("<&-", "stdin is closed"), ("0>/dev/null", "Bad file descriptor")],
)
def test_a_stdin_that_cannot_be_read(arguments, redirection, message):
    command = shlex.join([sys.executable, "-m", "triton_ext", *arguments])
    finished = subprocess.run(
        f"{command} {redirection}", shell=True, capture_output=True, text=True
    )
    assert finished.returncode == 2
    assert finished.stderr == f"triton-ext: file = '-': cannot be read: {message}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("diff", "-", "-"), "only one of A and B can be stdin"),
        (("banks", "--bits", "8", "--shape", "8192x8192"), "must have at most 1048576 elements"),
        (("precompile", "--sms", str(10**20)), "not in the range"),
    ],
)
def test_errors_of_other_commands(arguments, message):
    finished = triton_ext(*arguments)
    assert finished.returncode == 2
    assert not finished.stdout
    assert finished.stderr.count("\n") == 1
    assert message in finished.stderr


def test_names_that_the_output_cannot_encode(tmp_path):
    """File names may be any bytes."""
    file, other = tmp_path / "\udcff\u00fc.ptx", tmp_path / "other.ptx"
    text = (DATA / "nvcc_sm90.ptx").read_text()
    file.write_text(text)
    other.write_text(text.replace("mbarrier.init", "mbarrier.inval"))
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    finished = triton_ext("diff", file.name, other.name, cwd=tmp_path, env=environment)
    assert finished.returncode == 1, finished.stderr
    assert "\\udcff" in finished.stdout
    assert not finished.stderr


@pytest.mark.parametrize(
    "type_",
    [
        f"!ttg.memdesc<{'9' * 5000}x64xf16, #a, #ttg.shared_memory>",
        f"!ttg.memdesc<64x64xf{'9' * 5000}, #a, #ttg.shared_memory>",
        f"!ttg.memdesc<64x64xf16, #a, #ttg.shared_memory, mutable, {'9' * 5000}x64>",
    ],
)
def test_integers_of_thousands_of_digits(tmp_path, type_):
    """Python converts none of more than 4300."""
    file = tmp_path / "kernel.ttgir"
    file.write_text(f"#a = {ATTRIBUTE}\n%0 = ttg.local_alloc : () -> {type_}\n")
    finished = triton_ext("layout", str(file))
    assert finished.returncode in (0, 2)
    assert "Traceback" not in finished.stderr


def test_help():
    text = output("--help")
    for word in ("layout", "demo", "Shell completion"):
        assert word in text
    text = output("layout", "--help")
    for word in ("--swizzle", "--core", "--format", "Examples:", "ttgir"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 100


def test_version():
    from triton_ext import __version__

    assert output("--version").split()[-1] == __version__


def test_shell_completion():
    environment = {
        **os.environ,
        "_TRITON_EXT_COMPLETE": "bash_complete",
        "COMP_WORDS": "triton-ext layout --format ",
        "COMP_CWORD": "3",
    }
    finished = triton_ext(env=environment)
    assert finished.stdout.split() == [
        f"plain,{form}" for form in ("text", "json", "grid", "svg", "html")
    ]


HEAVY = {"jinja2", "matplotlib", "ml_dtypes", "numpy", "torch", "triton"}
"""Packages that take a while to import: 60 ms (jinja2) to seconds (torch)."""


def imported(*arguments):
    """The modules that the command imports, in a process of its own."""
    program = (
        "import sys\nfrom triton_ext.cli import main\n"
        f"try: main({list(arguments)!r})\n"
        "except SystemExit as stopped: assert not stopped.code\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", program]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    return set(finished.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        ("--help", set()),
        ("layout --bits 16 --shape 128x256", set()),
        ("layout --bits 16 --shape 128x256 --explain --format grid", set()),
        ("layout --bits 16 --shape 128x256 --format svg", {"jinja2"}),
        ("layout --bits 16 --shape 128x256 --format html", {"jinja2"}),
        ("banks --bits 16 --shape 64x64", set()),
        ("descriptor --bits 16 --shape 128x128 --explain", set()),
        ("descriptor --bits 16 --shape 128x128 --format html", {"jinja2"}),
        ("tma --bits 16 --shape 4096x4096 --block 128x256", set()),
        ("tmem --m 128 --n 256", set()),
        (f"ptx {DATA / 'cute_sm100.ptx'}", set()),
    ],
)
def test_a_command_imports_what_it_needs(arguments, heavy):
    assert HEAVY & imported(*arguments.split()) == heavy


def test_layout_starts_with_few_modules():
    """A start is as fast as it imports little: the command, the layouts, and their text."""
    own = {name for name in imported("layout", "--bits", "16", "--shape", "128x256")
           if name.startswith("triton_ext.")}  # fmt: skip
    assert len(own) <= 30, own
    packages = {name.split(".")[1] for name in own}
    assert not packages & {"emulator", "hardware", "kernels", "ops", "passes", "ptx"}


def test_check():
    pytest.importorskip("triton")
    finished = triton_ext("layout", "--bits", "16", "--shape", "128x256", "--check")
    assert finished.returncode == 0
    said = finished.stderr.splitlines()
    assert said[0].startswith("ok: the atom equals the documented one: K-major, 128B swizzle")
    assert said[1].startswith("ok: the tile equals Triton ")
    known = triton_ext(
        "layout", "--swizzle", "0", "--bits", "16", "--shape", "2x64x64", "--transposed", "--check"
    )
    assert known.returncode == 0
    assert "is known to be wrong here" in known.stderr


ATOM = ("--swizzle", "128", "--bits", "16", "--shape", "64x64")
WITH_JSON = {
    "banks": [*ATOM],
    "descriptor": [*ATOM],
    "diff": ["0x4000404000010000", "0x4000404000010000"],
    "layout": [*ATOM],
    "ptx": [str(DATA / "triton_sm100.ptx")],
    "tma": [*ATOM, "--block", "64x64"],
    "tmem": ["--m", "128", "--n", "64"],
}
ON_KERNELS = {"precompile", "run", "tune"}
"""Their tests are in test_precompile.py, test_strict.py and test_tuning.py."""


def test_each_command_gives_its_json_a_version():
    context = click.Context(main)
    commands = {name: main.get_command(context, name) for name in main.list_commands(context)}
    offered = {
        name
        for name, command in commands.items()
        for option in command.params
        if "json" in getattr(option.type, "choices", ())
    }
    assert offered == WITH_JSON.keys() | ON_KERNELS
    for name, arguments in WITH_JSON.items():
        found = CliRunner().invoke(main, [name, *arguments, "--format", "json"])
        assert next(iter(json.loads(found.stdout).items())) == ("version", 1), name
