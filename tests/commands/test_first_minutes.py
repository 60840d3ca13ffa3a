"""What a new user stumbles over: exit status, one line where one is enough, forgiving names."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest
from click.testing import CliRunner

from triton_ext.cli import main

ATOM = ["layout", "--bits", "16", "--swizzle", "128", "--core"]


def invoke(*arguments, **options):
    return CliRunner().invoke(main, list(arguments), **options)


def status_and_line(*arguments):
    """Of a command that says one line, and no traceback."""
    found = invoke(*arguments)
    assert isinstance(found.exception, SystemExit), found.exception
    said = found.stderr.strip().splitlines()
    assert len(said) == 1, found.stderr
    assert said[0].startswith("triton-ext: ")
    return found.exit_code, said[0]


def test_alone_it_helps():
    found = invoke()
    assert found.exit_code == 0
    assert "Commands:" in found.stdout
    assert found.stdout == invoke("--help").stdout
    for word in ("Exit status", "1 if a fault was found", "2 if the command"):
        assert word in found.stdout


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("sm90", "sm_90"), ("SM_90a", "sm_90"), ("90", "sm_90"), ("compute_90a", "sm_90"),
     ("sm_100f", "sm_100"), ("sm100a", "sm_100"), ("sm_103", "sm_100"), ("103a", "sm_100")],
)  # fmt: skip
def test_names_of_architectures(name, architecture):
    legal = {"sm_90": "0x4000004000010000", "sm_100": "0x4000404000010000"}[architecture]
    assert f"on {architecture}\n" in invoke("descriptor", legal, "--arch", name).stdout


@pytest.mark.parametrize("name", ["sm_80", "sm_120", "sm_90x", "sm_", "hopper", "9.0", "sm_1003"])
def test_architectures_that_are_refused_by_name(name):
    status, said = status_and_line("descriptor", "0x0", "--arch", name)
    assert status == 2
    assert f"arch = '{name}': must be sm_90 (wgmma) or sm_100 (tcgen05)" in said


@pytest.mark.parametrize(
    ("command", "name"),
    [(["run", "--emulate"], "sm_75"), (["compile", "--target"], "sm_101"),
     (["precompile", "--arch"], "sm_103")],
)  # fmt: skip
def test_targets_that_are_refused_by_name(command, name):
    status, said = status_and_line(*command, name, *([__file__] if len(name) < 6 else []))
    assert (status, f"arch = '{name}'" in said) == (2, True)


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("0x4000404000010000", "--arch", "sm_90"), "reserved bits 46"),
        (("0x08200491", "--kind", "f16"), "sparsity_selector = 1: must be one of [0]"),
    ],
)
def test_a_fault_that_is_found_has_status_1(arguments, problem, form):
    status, said = status_and_line("descriptor", *arguments, "--format", form)
    assert status == 1
    assert problem in said


def test_a_tile_beside_a_value_needs_its_elements():
    status, said = status_and_line("descriptor", "0x4000404000010000", "--instr", "64x16")
    assert (status, "give the width of its elements with the tile: --bits" in said) == (2, True)


def test_stdin():
    text = invoke(*ATOM, "--format", "json").stdout
    assert invoke("layout", "-", input=text).stdout == invoke(*ATOM).stdout
    module = "%0 = x : !ttg.memdesc<8x64xf16, #ttg.swizzled_shared<{vec = 8, perPhase = 1,"
    module += " maxPhase = 8, order = [1, 0]}>>\n"
    assert "swizzled_shared" in invoke("layout", "-", input=module).stdout
    refused = invoke("layout", "-", input="nothing")
    assert (refused.exit_code, "'-' uses no" in refused.stderr) == (2, True)


@pytest.mark.parametrize("n", [8, 24, 96, 192, 248, 256])
def test_an_n_that_is_no_power_of_two(n):
    text = invoke("tmem", "--m", "128", "--n", str(n), "--element", f"3,{n - 1}").stdout
    assert f"columns: {n} of 32 bits" in text
    assert f"lane 3, slot 0, column {n - 1}," in text
    if n & (n - 1):
        status, said = status_and_line("tmem", "--m", "128", "--n", str(n), "--element", f"3,{n}")
        assert status == 2
        assert f"less than N = {n}" in said
        text = invoke("tmem", "--m", "128", "--n", str(n), "--address", hex(n)).stdout
        assert "no element of the matrix" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--m", "256", "--n", "8", "--cta-group", "2"), "n = 8: must be one of 16, 32, 48"),
        (("--m", "64", "--n", "24", "--ws"), "n = 24: must be one of 64, 128, 256"),
        (("--m", "128", "--n", "64", "--warps", "8"), "give --load, too"),
    ],
)
def test_tensor_memory_that_no_instruction_has(arguments, said):
    status, line = status_and_line("tmem", *arguments)
    assert status == 2
    assert said in line


def test_the_one_reason_why_rows_have_no_descriptor():
    status, said = status_and_line(
        "descriptor", "--swizzle", "0", "--bits", "16", "--shape", "128x64"
    )
    assert status == 2
    assert len(said) < 600
    for words in (
        "no swizzle, K-major",
        "[16, 32, 64] bytes apart",
        "core matrices",
        "swizzle them",
    ):
        assert words in said
    assert "MN-major" not in said


def in_a_terminal(*arguments, **environment):
    """What a command writes to a terminal."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "triton_ext", *arguments]
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    child = subprocess.Popen(command, stdout=follower, env=inherited | environment)
    os.close(follower)
    output = b""
    try:
        while part := os.read(leader, 65536):
            output += part
    except OSError:  # Linux's end of a terminal
        pass
    assert child.wait() == 0
    return output


def test_no_color():
    """https://no-color.org"""
    grid = (*ATOM, "--format", "grid")
    assert b"\x1b[3" in in_a_terminal(*grid)
    assert b"\x1b[3" in in_a_terminal(*grid, NO_COLOR="")
    plain = in_a_terminal(*grid, NO_COLOR="1")
    assert b"\x1b" not in plain
    assert plain.decode().replace("\r\n", "\n") == invoke(*grid).stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("form", ["text", "html"])
def test_a_full_disk(form):
    command = [sys.executable, "-m", "triton_ext", "layout", "--bits", "16", "--shape", "64x64"]
    with open("/dev/full", "w") as full:
        finished = subprocess.run(
            [*command, "--format", form], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert finished.returncode == 2
    assert finished.stderr == "triton-ext: cannot write the output: No space left on device\n"


COMPLETIONS = [
    ("triton-ext compile --target ", {"sm_90", "sm_100", "sm_120"}),
    ("triton-ext run --emulate sm_9", {"sm_90"}),
    ("triton-ext compile --passes lint-shared,ver", {"lint-shared,verify-descriptors"}),
]


@pytest.mark.parametrize(("typed", "offered"), COMPLETIONS, ids=[typed for typed, _ in COMPLETIONS])
def test_completion(typed, offered):
    if "--passes" in typed:
        pytest.importorskip("triton")
    words = typed.split(" ")
    environment = {
        **os.environ,
        "_TRITON_EXT_COMPLETE": "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
    }
    command = [sys.executable, "-m", "triton_ext"]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    found = {line.partition(",")[2] for line in finished.stdout.split()}
    assert offered <= found
    assert len(found) <= max(len(offered), 10)


# --------------------------------------------------------------------------- scripts, and Triton


SCRIPT = """import triton, triton.language as tl

@triton.jit
def add(a, b, N: tl.constexpr):
    r = tl.arange(0, N)
    tl.store(b + r, tl.load(a + r) + 1)

@triton.jit
def wrong(a, b, N: tl.constexpr):
    r = tl.arange(0, N)
    tl.store(b + r, tl.load(a + r) + nothing)

def fails():
    raise LookupError("of the script")

def launch(kernel):
    import torch
    x = torch.zeros(64, device="cuda")
    kernel[(1,)](x, x, 64)
    return x

if __name__ == "__main__":
    import sys
    {"fails": fails, "add": lambda: launch(add), "wrong": lambda: launch(wrong),
     "exit": lambda: sys.exit(7)}[sys.argv[1]]()
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def test_a_binary_file_is_no_script():
    pytest.importorskip("triton")
    status, said = status_and_line("compile", sys.executable)  # `run` runs it
    assert status == 2
    assert "is no Python script, but a binary file" in said


@pytest.mark.parametrize(
    ("source", "named"),
    [(b"# -*- coding: klingon -*-\n", "unknown encoding: klingon"), (b"x = '\xff'\n", "encoding")],
)
def test_a_script_in_an_unknown_encoding_is_named_so(tmp_path, source, named):
    pytest.importorskip("triton")
    path = tmp_path / "script.py"
    path.write_bytes(source)
    status, said = status_and_line("run", str(path))
    assert status == 2
    assert "is no Python script: " in said
    assert named in said


@pytest.mark.parametrize("command", ["run", "compile"])
def test_a_syntax_error_of_the_script_shows_no_other_frames(tmp_path, command):
    pytest.importorskip("triton")
    path = tmp_path / "script.py"
    path.write_text("x = (\n")
    found = invoke(command, str(path))
    assert found.exit_code == 1
    assert found.stderr.splitlines()[0].split() == ["File", f'"{path}",', "line", "1"]


def test_a_scripts_exception_shows_its_own_frames(script):
    for command in ("run", "compile"):
        found = invoke(command, script, "fails")
        assert found.exit_code == 1
        lines = found.stderr.splitlines()
        assert lines[0] == "Traceback (most recent call last):"
        assert lines[-1] == "LookupError: of the script"
        frames = [line for line in lines if line.lstrip().startswith("File ")]
        assert len(frames) == 2
        assert all(f'"{script}"' in frame for frame in frames)
    assert invoke("run", script, "exit").exit_code == 7
    assert invoke("run", script, "add").exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [("run", "{}", "wrong"), ("compile", "{}", "wrong"),
     ("compile", "{}::wrong", "--signature", "*fp32, *fp32, 64")],
    ids=["run", "compile", "signature"],
)  # fmt: skip
def test_compile_errors_keep_their_lines_and_caret(script, arguments):
    found = invoke(*(argument.format(script) for argument in arguments))
    assert found.exit_code == 1
    source = "    tl.store(b + r, tl.load(a + r) + nothing)\n"
    assert source + " " * source.index("nothing") + "^\n" in found.stderr
    assert "NameError('nothing is not defined')" in found.stderr
    assert "triton_ext/" not in found.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--only", "("), "'(' is no regular expression"),
        (("--only", "(" * 5000), "is no regular expression"),
        (("--block", "1xy"), "'1xy' is no block"),
        (("--block", "0x0x0"), "--block cannot be used without --trace or --trace-file"),
        (("--hits", "2"), "--hits cannot be used without --break-at"),
        (("--break-at", "here"), "'here': must be a file and a line"),
    ],
)
def test_options_of_run(script, arguments, words):
    status, said = status_and_line("run", *arguments, script, "add")
    assert status == 2
    assert words in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--signature", "*fp99, *fp32, 64"), "signature.a = '*fp99': is no type"),
        (("--signature", "*fp32, x y, 64"), "signature.b = 'x y': is no type"),
        (
            ("--signature", "*fp32, *fp32, 64", "--num-warps", "3"),
            "'3' is not one of '1', '2', '4'",
        ),
        (("--signature", "*fp32, *fp32, 64", "--num-ctas", "0"), "'0' is not one of"),
        (("--signature", "*fp32, *fp32, 64", "--num-stages", "0"), "0 is not in the range"),
    ],
)
def test_options_of_compile(script, arguments, words):
    status, said = status_and_line("compile", f"{script}::add", *arguments)
    assert status == 2
    assert words in said


SHARED = "#ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>"
TILE = ("--bits", "16", "--shape", "64x64")
PADDED = "#ttg.padded_shared<[32:+4] {order = [1, 0], shape = [16, 32]}>"
TENSOR = "#ttng.tensor_memory_encoding<blockM = 128, blockN = 64, colStride = 1>"
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("triton", "torch"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from triton_ext.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "command",
    ["run {}", "compile {}", "compile --list", "demo", "tune 64 64 64",
     "layout --bits 16 --shape 64x64 --check"],
)  # fmt: skip
def test_without_triton(command, tmp_path):
    """Each command that needs it says what to install."""
    (tmp_path / "triton.py").write_text("raise ModuleNotFoundError(\"No module named 'triton'\")")
    (tmp_path / "script.py").write_text("")
    arguments = command.format(tmp_path / "script.py").split()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    finished = subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments], env=environment, capture_output=True, text=True
    )
    assert finished.returncode == 2, finished.stderr
    assert finished.stderr.startswith("triton-ext: ")
    assert finished.stderr.count("\n") == 1
    assert "riton" in finished.stderr
    assert "install" in finished.stderr
    assert "Traceback" not in finished.stdout + finished.stderr


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (
            "typing_extensions",
            "there is no module typing_extensions: install the package that has it",
        ),
        ("triton_ext.timeline", "triton_ext.timeline is missing from this installation"),
        ("torch", "there is no module torch; install both: pip install triton torch"),
    ],
)
def test_another_missing_module_is_named(missing, words, tmp_path):
    """What is missing is said, and torch and Triton only if they are."""
    pytest.importorskip("torch")
    (tmp_path / "script.py").write_text("")
    code = WITHOUT.replace('name.split(".")[0] in ("triton", "torch")', f"name == {missing!r}")
    command = [sys.executable, "-c", code, "run", str(tmp_path / "script.py")]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 2, finished.stderr
    assert words in finished.stderr
    assert ("pip install" in finished.stderr) == (missing == "torch")
    assert "Traceback" not in finished.stderr


def test_an_emulator_that_lacks_a_module_is_no_missing_emulator():
    pytest.importorskip("torch")
    code = WITHOUT.replace(
        'name.split(".")[0] in ("triton", "torch")', 'name == "triton_ext.emulator.schedule"'
    ).replace(
        "from triton_ext.cli import main\nmain(sys.argv[1:])",
        "import torch, triton_ext\na = torch.ones(64, 64).half()\ntriton_ext.matmul(a, a)",
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.returncode == 1
    assert "No module named 'triton_ext.emulator.schedule'" in finished.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("layout", "--bits", "16", "--shape", "64x64", "--format", "json", "--explain"),
            "--explain",
        ),
        (("layout", *TILE, "--full"), "--full cannot be used with --format text"),
        (("layout", "--swizzle", "64", "--bits", "16", "--core", "--cga", "[[1, 0]]"), "--cga"),
        (("layout", SHARED, "--shape", "64x64", "--major", "K"), "--major"),
        (("layout", SHARED, "--shape", "64x64", "--bits", "8"), "bits = 8: must be 16"),
        (("layout", TENSOR, "--shape", "128x64"), "see `triton-ext tmem`"),
        (("diff", "1", "2", "--shape", "64x64"), "--shape cannot be used without an attribute"),
        (("diff", "1", "2", "--kind", "f16", "--arch", "sm_90"), "--arch cannot be used with"),
        (("tma", "--shape", "64x64", "--block", "64x64"), "--bits, or --dtype"),
        (("run", "--seed", "3", __file__), "--seed cannot be used with --schedule eager"),
        (("compile", "--num-warps", "8", __file__), "--num-warps cannot be used without"),
        (("compile", "--list", "--emit", "ptx"), "--emit cannot be used with --list"),
        (("banks", PADDED, "--bits", "16"), "offsets[1] = 72: must be a multiple"),
    ],
)
def test_options_that_do_nothing_are_refused(arguments, words):
    status, said = status_and_line(*arguments)
    assert status == 2
    assert words in said


def test_padded_layouts_at_the_command_line(tmp_path):
    """Wavefronts by hand: rows 144 bytes apart are in other banks, rows 128 apart in the same."""

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "triton_ext", *arguments], capture_output=True, text=True
        )

    rows = "#ttg.padded_shared<[64:+8] {order = [1, 0], shape = [16, 64]}>"
    plain = "#ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>"
    padded = run("banks", rows, "--bits", "16", "--access", "ldmatrix")
    assert padded.stdout.splitlines()[1] == "1 wavefront, no bank conflict"
    linear = run("banks", plain, "--shape", "16x64", "--bits", "16", "--access", "ldmatrix")
    assert linear.stdout.splitlines()[1] == "8 wavefronts instead of 1: 8-way bank conflict"
    file = tmp_path / "padded.json"
    file.write_text(run("layout", rows, "--bits", "16", "--format", "json").stdout)
    assert run("layout", str(file)).stdout.splitlines()[-1].startswith("Padding: 8 unused")
    assert run("diff", rows, str(file)).stdout == "the same layout\n"
    other = run("diff", rows, plain, "--shape", "16x64")
    assert other.returncode == 1
    assert "not the same layout, first at padding" in other.stdout
    tensor = run("diff", TENSOR, TENSOR.replace("Stride = 1", "Stride = 2"), "--shape", "128x64")
    assert "not the same layout, first at" in tensor.stdout, tensor.stderr
