"""Draws ``docs/pictures``, and writes what is generated of the pages.

Run by ``make docs``: the output of the commands in ``docs/guide/layouts.md``, and of
``docs/reference`` the tables of instructions, of targets and of what is undefined and relied on,
and the museum.

Every picture is what a command prints, or what a function of `triton_ext.render` returns; the same
input gives the same bytes.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from click.testing import CliRunner

from triton_ext.cli import main
from triton_ext.emulator.decode.decoder import opcodes_of
from triton_ext.emulator.decode.evidence import EVIDENCE
from triton_ext.emulator.instructions import FAMILIES, TABLES
from triton_ext.emulator.state.leniencies import LENIENCIES
from triton_ext.hardware.architecture import CAPABILITIES
from triton_ext.layouts.atoms import Major, SwizzleAtom
from triton_ext.layouts.encodings import SWIZZLE_BYTE_WIDTHS, SharedLinear
from triton_ext.ptx.new_forms import NEW_FORMS
from triton_ext.ptx.targets import ROWS, having
from triton_ext.render.html import stacked_atoms
from triton_ext.render.scene import MARGIN, Box, Scene, Text
from triton_ext.render.svg import atom_svg
from triton_ext.render.tile_picture import tile_scene

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PICTURES = DOCS / "pictures"
PAGE = DOCS / "guide" / "layouts.md"
REFERENCE = DOCS / "reference"
CONSOLE = re.compile(r"```\n\$ (triton-ext[^\n]*)\n(.*?)```", re.DOTALL)
"""A command and what it prints, as the page and the README show them."""

# The operand of seed 004's kernel 2, 64x64 of 16 bits in core matrices, as an attribute.
CORE_MATRICES = str(
    SharedLinear.from_linear_layout(stacked_atoms(SwizzleAtom("K", 0, 16), (64, 64)), 128)
)
# Picture -> the command that draws it.
COMMANDS = {
    "conflict": "banks --swizzle 0 --bits 16 --shape 8x64 --at 0,8",
    "no-conflict": "banks --swizzle 128 --bits 16 --shape 8x64 --at 0,8",
    "descriptor": "descriptor 0x4000404000010000 --arch sm_100",
    "descriptor-wrong": "descriptor 0x7000404000014000 --arch sm_100",
    "descriptor-hopper": "descriptor 0x4000004000010000 --arch sm_90",
    "operand-k": "descriptor --swizzle 128 --bits 16 --shape 128x128 --instr 64x16",
    "operand-mn": "descriptor --swizzle 64 --bits 16 --shape 128x128 --instr 64x16 --transposed",
    "operand-none": f"descriptor '{CORE_MATRICES}' --bits 16 --shape 64x64 --instr 64x16",
    "instruction": "descriptor 0x08200490 --kind f16",
    "accumulator-128": "tmem --m 128 --n 256",
    "accumulator-64": "tmem --m 64 --n 64 --load 16x256b",
}


def command_output(command: str) -> str:
    """What a command prints.

    Raises:
        RuntimeError: the command fails.
    """
    runner = CliRunner(env={"COLUMNS": "100"})  # whatever the terminal
    result = runner.invoke(main, shlex.split(command), prog_name="triton-ext")
    if result.exit_code:
        raise RuntimeError(f"triton-ext {command}: {result.output}")
    return result.output


def _stacking() -> str:
    """Seed 003, Sec. 7: 4 atoms of a 16x32 tile, down first and across first."""
    atom = SwizzleAtom("K", 32, 16)
    shape = (16, 32)
    along_m, along_k = (
        tile_scene(stacked_atoms(atom, shape, order), 16, atom=atom, number=f"{name} first. ")
        for order, name in (((0, 1), "M"), ((1, 0), "K"))
    )
    return along_m.above(along_k).to_svg()


def _example_3() -> str:
    """Seed 000, third example: 256x64, 32-byte swizzle, atoms along K first."""
    atom = SwizzleAtom("K", 32, 16)
    layout = stacked_atoms(atom, (256, 64), (1, 0))
    return tile_scene(layout, 16, atom=atom, instruction=(128, 16)).to_svg()


def _summary(module: str) -> str:
    """The first line of a module's docstring; ``passes`` and ``kernels`` lie at the top."""
    path = Path(*module.split("."))
    if path.parts[1] in ("passes", "kernels"):
        path = path.relative_to("triton_ext")
    file = ROOT / path / "__init__.py"
    text = (file if file.exists() else ROOT / path.with_suffix(".py")).read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


def _layers(container: str, heading: str) -> str:
    """The layers that the import linter enforces, from the top down, each with what it is."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each.get("containers") == [container])
    plain = {
        source.split(".")[1]
        for each in contracts
        if each["type"] == "forbidden"
        for source in each["source_modules"]
    }
    width, height, gap = 150, 30, 8
    boxes, texts = [], [Text(MARGIN, MARGIN + 8, heading, "heading")]
    y = float(MARGIN + 28)
    for layer in layers:
        for name in layer.split(" | "):
            kind = "chunk fill5" if name in plain else "chunk fill3"
            boxes.append(Box(MARGIN, y, width, height, kind, label=name))
            note = _summary(f"{container}.{name}").replace("`", "")
            texts.append(Text(MARGIN + width + 14, y + height / 2, note, "note"))
            y += height
        y += gap
    texts.append(Text(MARGIN, y + 8, "Green: imports neither Triton nor torch, enforced.", "note"))
    y += 17 + MARGIN
    return Scene(
        heading, "Each imports only those below it.", 860, y, (*boxes,), (*texts,)
    ).to_svg()


def pictures() -> dict[str, Callable[[], str]]:
    """The name of each picture, without ``.svg``, and what draws it."""
    drawn: dict[str, Callable[[], str]] = {
        "stacking": _stacking,
        "example-3": _example_3,
        "layers": partial(_layers, "triton_ext", "triton_ext: each imports only those below it"),
    }
    for name, command in COMMANDS.items():
        drawn[name] = partial(command_output, f"{command} --format svg")
    majors: tuple[Major, ...] = ("K", "MN")
    for major in majors:
        for width in SWIZZLE_BYTE_WIDTHS:
            atom = SwizzleAtom(major, width, 16)
            drawn[f"atom-{major.lower()}-{width}"] = partial(atom_svg, atom)
    return drawn


def refreshed(page: str) -> str:
    """The page with the output of each of its commands as it is now."""
    return CONSOLE.sub(
        lambda block: f"```\n$ {block[1]}\n{command_output(block[1].partition(' ')[2])}```", page
    )


def _names(opcodes: Iterable[str]) -> str:
    return " ".join(f"`{name}`" for name in opcodes)


def _families() -> Iterator[str]:
    """The rows of the instructions that have a function: a line for each module and evidence."""
    for module in FAMILIES:
        subject = " ".join((module.__doc__ or "").partition("\n\n")[0].split())
        subject = re.split(r": | \(PTX ISA", subject)[0].rstrip(".")
        found: dict[tuple[str, str], list[str]] = {}
        for each in opcodes_of([module]).values():
            if each.evidence:
                found.setdefault((each.evidence.label, each.but), []).append(each.base)
        for (label, but), names in found.items():
            yield f"| {subject} | {_names(names)} | {label} | {but} |"


def _cell(text: str) -> str:
    """Code for a cell of a table, where a bar would end it."""
    return f"`{text}`".replace("|", "\\|") if text else ""


def instructions() -> str:
    """``docs/reference/instructions.md``, from the tables that the emulator is made of."""
    lines = [
        "# The instructions of the emulated GPU",
        "",
        "This page is generated (`make docs`). An instruction that is not listed is refused before"
        " anything runs, with its line; so is a modifier or an operand that is not modelled.",
        "",
        "## Evidence",
        "",
        "| evidence | what it means |",
        "| --- | --- |",
        *(f"| {each.label} | {each.meaning} |" for each in EVIDENCE),
        "",
        "The records of the GPU are in [`benchmarks/results`](../../benchmarks/results)"
        " (`emulator_scalar_h100.json`, `emulator_copies_h100.json`, `emulator_matrix_h100.json`,"
        " `sm90_tests_h100.txt`). No Blackwell was measured. A test compares what is said here of"
        " silicon with the instructions of the recorded cases.",
        "",
        "| family | instructions | evidence | in particular |",
        "| --- | --- | --- | --- |",
        *_families(),
        "",
        "Not modelled are sparse products, interleaved tensor maps, `im2col::w`, im2col columns"
        " that begin at a pixel which is not walked, `multimem`, `cvt.rs`, textures and surfaces,"
        " video instructions, recursive calls, and dynamic parallelism.",
        "",
        "## Forms of elementwise instructions",
        "",
        "Of the modifiers, `a|b` is one of two, and `a?` may be missing. In the operands, `t` is"
        " the instruction's type, `s` its second type, `w` a type of twice the width, `b` its bits"
        " without a sign, and `cc` the carry flag. A form is of silicon if each of its instructions"
        " was run on the H100 with one of the types at least.",
    ]
    for module in TABLES:
        title = (module.__doc__ or "").partition("\n")[0].rstrip(".")
        lines += ["", f"### {title}", ""]
        lines += ["| instructions | modifiers | types | operands | evidence |"]
        lines += ["| --- | --- | --- | --- | --- |"]
        forms = []
        for row in module.ROWS:
            types = f"{row.types}; s: {row.second}" if row.second else row.types
            names = _names(row.opcodes.split())
            cells = (names, *map(_cell, (row.modifiers, types, row.operands)), row.evidence.label)
            forms.append(f"| {' | '.join(cells)} |")
        lines += dict.fromkeys(forms)  # some rows differ in how they compute alone
    return "\n".join([*lines, ""])


def _targets_of(needs: tuple[str, ...]) -> Iterator[str]:
    """A cell for each capability: the suffix with which it has what `needs` ask for."""
    found = {each.number: each.suffix for each in having(needs)}
    for number in CAPABILITIES:
        yield {None: "", "": "yes"}.get(found.get(number), found.get(number) or "")


def targets() -> str:
    """``docs/reference/targets.md``, from the tables that refusals follow."""
    names = " | ".join(f"sm_{number}" for number in CAPABILITIES)
    rule = " | ".join(["---"] * (1 + len(CAPABILITIES)))
    lines = [
        "# The targets",
        "",
        "This page is generated (`make docs`). All commands, `emulate`, `run_ptx`, the fixture and"
        " the passes take these GPUs; what one of them lacks is refused before anything runs, as"
        " ptxas refuses it. `tests/ptx/test_targets.py` compares the second table with the ptxas of"
        " Triton 3.9, each form of an instruction on each target.",
        "",
        "| target | GPU | tensor cores | multiprocessors | shared memory of a block | threads of a"
        " multiprocessor | blocks of a cluster | columns of tensor memory |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(
            f"| sm_{each.number} | {each.gpu} | {each.products} | {each.multiprocessors} |"
            f" {each.shared_memory_per_block >> 10} KB | {each.threads_per_sm} | {each.cluster} |"
            f" {each.tensor_memory_columns or ''} |"
            for each in CAPABILITIES.values()
        ),
        "",
        "The matmul and its kernels run on sm_90 and on those with tcgen05; the timeline has"
        " figures of sm_90 and sm_100. How tensor cores round was measured on sm_90; elsewhere a"
        " product is rounded once. None of the others was measured.",
        "",
        "## What not every target has",
        "",
        "`a`: with the suffix, as in `.target sm_100a`; `f`: with `f` or `a`; yes: with none, too."
        " The compilers of Triton write the suffix.",
        "",
        f"| instructions | {names} |",
        f"| {rule} |",
        *(f"| {row.what} | {' | '.join(_targets_of(row.needs))} |" for row in ROWS),
        "",
        "Of `tcgen05.mma`, K = 96 of the mxf4 kinds is of sm_103 and sm_107; K = 64 of f8f6f4 and"
        " mxf8f6f4, and K = 128 of the mxf4 kinds, of sm_107. The instruction descriptor says it,"
        " which ptxas does not see.",
        "",
        "## New forms of PTX",
        "",
        "| PTX ISA | form | |",
        "| --- | --- | --- |",
        *(
            f"| {each.version} | {each.what} | {'executed' if each.executed else 'refused'} |"
            for each in NEW_FORMS
        ),
    ]
    return "\n".join([*lines, ""])


def undefined() -> str:
    """``docs/reference/undefined.md``, from the table that the emulator reads."""
    lines = [
        "# Undefined, and relied on",
        "",
        "This page is generated (`make docs`). Published kernels, whose results are checked, do"
        " what the documents leave undefined. The emulated GPU runs these as hardware does, and"
        " says once for each what is undefined and on whose word it is taken: a warning of the"
        " category `UndefinedBehaviour`. With `strict` each is a fault. Nothing else differs"
        " between the two but [the end of a branch](#the-end-of-a-branch): a race is a fault in"
        " both.",
        "",
        "| where | how to be strict |",
        "| --- | --- |",
        "| `emulate`, `run_ptx` | `strict=True` |",
        "| `triton-ext run` | `--strict` |",
        "| pytest, with the fixture `emulated_gpu` | `--emulate-strict` |",
        "| the environment | `TRITON_EXT_EMULATE='sm_100{strict=true}'` |",
        "",
        "For machines: `triton-ext run --format json` prints an object with `faults` (how many of"
        " each kind) and `undefined` (these rows, by their names); `--format sarif` has them as"
        " warnings `undefined/NAME`; `EmulatedGpu.taken` and `Machine.taken` hold them.",
    ]
    for rule in LENIENCIES:
        lines += [
            "",
            f"## {rule.name}",
            "",
            f"{rule.undefined[0].upper()}{rule.undefined[1:]} ({rule.document}).",
            "",
            f"- *It is taken for:* {rule.taken}.",
            f"- *Evidence:* {rule.evidence}.",
        ]
    lines += [
        "",
        "## The end of a branch",
        "",
        "PTX lets the lanes of a warp that part at a branch go on by themselves for ever. ptxas has"
        " them meet: of such a branch it makes a `BSSY`, and a `BSYNC` at its immediate"
        " post-dominator, where all ways from it come together. So the emulated GPU has lanes wait"
        " there for those that they parted from, under each schedule, while anything else can go"
        " on; nothing is said of it. With `strict` they do not wait, and a kernel that relies on it"
        " may end in a fault, as two of [tokamax' kernels](foreign.md#jax) would.",
    ]
    return "\n".join([*lines, ""])


def museum() -> str:
    """``docs/reference/museum.md``: each exhibit is run for it."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    page: Callable[[], str] = importlib.import_module("museum.exhibits").page
    return page()


def write() -> None:
    """Write all pictures and pages; remove pictures that are drawn no more."""
    PICTURES.mkdir(exist_ok=True)
    drawn = pictures()
    for stale in PICTURES.glob("*.svg"):
        if stale.stem not in drawn:
            stale.unlink()
    for name, draw in drawn.items():
        (PICTURES / f"{name}.svg").write_text(draw(), encoding="utf-8")
    PAGE.write_text(refreshed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    (REFERENCE / "instructions.md").write_text(instructions(), encoding="utf-8")
    (REFERENCE / "targets.md").write_text(targets(), encoding="utf-8")
    (REFERENCE / "undefined.md").write_text(undefined(), encoding="utf-8")
    (REFERENCE / "museum.md").write_text(museum(), encoding="utf-8")


if __name__ == "__main__":
    write()
