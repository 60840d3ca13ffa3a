"""Small modules with one fault each that `lint-shared` must find, and without it.

Each is TTGIR as Triton prints it, with locations in ``seed.py``: line 1 is where memory is
allocated, line 2 where it is written, line 3 where it is read, line 4 the MMA.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


def blocked(each: str, lanes: str, warps: str, order: str) -> str:
    return (
        f"#ttg.blocked<{{sizePerThread = [{each}], threadsPerWarp = [{lanes}],"
        f" warpsPerCTA = [{warps}], order = [{order}]}}>"
    )


ROWS = blocked("1, 4", "4, 8", "4, 1", "1, 0")  # 16 bytes of 32-bit elements, lanes along a row
ROWS_16 = blocked("1, 8", "4, 8", "4, 1", "1, 0")
ROWS_8 = blocked("1, 16", "8, 4", "4, 1", "1, 0")
COLUMNS = blocked("1, 1", "32, 1", "1, 4", "0, 1")
MMA = (
    "#ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1],"
    " instrShape = [16, 64, 16]}>"
)
TMEM = "#ttng.tensor_memory_encoding<blockM = 128, blockN = 64, colStride = 1>"
BARRIER = "#ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>"

ROWS_OF = {"f32": ROWS, "i32": ROWS, "f16": ROWS_16, "bf16": ROWS_16, "i8": ROWS_8}
BITS = {"f32": 32, "f16": 16, "bf16": 16, "i8": 8, "f8E5M2": 8, "i32": 32, "f64": 64}


def nvmma(width: int, element: str = "f16", transposed: bool = False, rank: int = 2) -> str:
    flag = str(transposed).lower()
    text = f"swizzlingByteWidth = {width}, transposed = {flag}, elementBitWidth = {BITS[element]}"
    return f"#ttg.nvmma_shared<{{{text}{f', rank = {rank}' if rank != 2 else ''}}}>"


def swizzled(vec: int, per_phase: int, max_phase: int, order: str = "1, 0") -> str:
    return (
        f"#ttg.swizzled_shared<{{vec = {vec}, perPhase = {per_phase}, maxPhase = {max_phase},"
        f" order = [{order}]}}>"
    )


def padded(interval: int, padding: int, shape: str = "64, 64") -> str:
    return f"#ttg.padded_shared<[{interval}:+{padding}] {{order = [1, 0], shape = [{shape}]}}>"


def linear(rows: list[tuple[int, int]], columns: int = 64, alignment: int = 128) -> str:
    """Columns side by side, and then the given bases of rows."""
    first = [[0, 1 << i] for i in range(columns.bit_length() - 1)]
    bases = first + [list(basis) for basis in rows]
    return f"#ttg.shared_linear<{{offset = {bases}}}, alignment = {alignment}>"


@dataclass(frozen=True)
class Seed:
    """A module, and what is to be found in it.

    Attributes:
        kinds: of the findings, each once; none for a clean module.
        line: of the first finding in ``seed.py``; 0 for any.
        said: what message or help must say.
    """

    name: str
    text: str
    kinds: tuple[str, ...] = ()
    line: int = 0
    said: tuple[str, ...] = ()
    arch: int = 90
    metadata: dict[str, Any] = field(default_factory=dict)


class Writer:
    """The lines of a kernel."""

    def __init__(self, arch: int = 90) -> None:
        self.arch = arch
        self.aliases: dict[str, str] = {"#smem": "#ttg.shared_memory"}
        self.arguments: list[str] = []
        self.lines = [
            "%true = arith.constant true",
            "%c0 = arith.constant 0 : i32",
            "%c1 = arith.constant 1 : i32",
            "%c2 = arith.constant 2 : i32",
        ]
        self.count = 0

    def alias(self, text: str) -> str:
        names = {known: name for name, known in self.aliases.items()}
        name = names.get(text, f"#e{len(self.aliases)}")
        self.aliases[name] = text
        return name

    def add(self, text: str, line: int = 9) -> None:
        self.lines.append(f'{text} loc("seed.py":{line}:5)')

    def value(self, text: str, line: int = 9) -> str:
        self.count += 1
        name = f"%v{self.count}"
        self.add(f"{name} = {text}", line)
        return name

    def memory(self, shape: str, encoding: str, whole: str = "", space: str = "#smem") -> str:
        name = self.alias(encoding)
        return f"!ttg.memdesc<{shape}, {name}, {space}, mutable{f', {whole}' if whole else ''}>"

    def tensor(self, shape: str, registers: str) -> tuple[str, str]:
        kind = f"tensor<{shape}, {self.alias(registers)}>"
        number = "0" if shape.rpartition("x")[2].startswith("i") else "0.000000e+00"
        return self.value(f"arith.constant dense<{number}> : {kind}"), kind

    def alloc(self, shape: str, encoding: str) -> tuple[str, str]:
        kind = self.memory(shape, encoding)
        return self.value(f"ttg.local_alloc : () -> {kind}", 1), kind

    def store(self, tile: tuple[str, str], shape: str, registers: str) -> None:
        value, kind = self.tensor(shape, registers)
        self.add(f"ttg.local_store {value}, {tile[0]} : {kind} -> {tile[1]}", 2)

    def load(self, tile: tuple[str, str], shape: str, registers: str) -> None:
        kind = f"tensor<{shape}, {self.alias(registers)}>"
        self.value(f"ttg.local_load {tile[0]} : {tile[1]} -> {kind}", 3)

    def trans(self, tile: tuple[str, str], shape: str, encoding: str) -> tuple[str, str]:
        kind = self.memory(shape, encoding)
        text = f"ttg.memdesc_trans {tile[0]} {{order = array<i32: 1, 0>}} : {tile[1]} -> {kind}"
        return self.value(text), kind

    def index(self, tile: tuple[str, str], at: str, shape: str, encoding: str) -> tuple[str, str]:
        kind = self.memory(shape, encoding)
        return self.value(f"ttg.memdesc_index {tile[0]}[{at}] : {tile[1]} -> {kind}"), kind

    def reinterpret(self, tile: tuple[str, str], shape: str, encoding: str) -> tuple[str, str]:
        kind = self.memory(shape, encoding)
        return self.value(f"ttg.memdesc_reinterpret {tile[0]} : {tile[1]} -> {kind}"), kind

    def slice(
        self, tile: tuple[str, str], at: str, shape: str, whole: str, encoding: str
    ) -> tuple[str, str]:
        kind = self.memory(shape, encoding, whole)
        return self.value(f"ttg.memdesc_subslice {tile[0]}[{at}] : {tile[1]} -> {kind}"), kind

    def descriptor(self, shape: str, encoding: str) -> tuple[str, str]:
        kind = f"!tt.tensordesc<{shape}, {self.alias(encoding)}>"
        name = f"%d{len(self.arguments)}"
        self.arguments.append(f"{name}: {kind}")
        return name, kind

    def barrier(self) -> tuple[str, str]:
        kind = self.memory("1xi64", BARRIER)
        bar = self.value(f"ttg.local_alloc : () -> {kind}")
        self.add(f"ttng.init_barrier {bar}, 1 : {kind}")
        return bar, kind

    def tma_load(self, tile: tuple[str, str], shape: str, encoding: str) -> None:
        desc, (bar, bar_kind) = self.descriptor(shape, encoding), self.barrier()
        self.add(
            f"ttng.async_tma_copy_global_to_local {desc[0]}[%c0, %c0] {tile[0]}, {bar}, %true :"
            f" {desc[1]}, {bar_kind} -> {tile[1]}",
            2,
        )
        self.add(f"ttng.wait_barrier {bar}, %c0 : {bar_kind}")

    def tma_store(self, tile: tuple[str, str], shape: str, encoding: str) -> None:
        desc = self.descriptor(shape, encoding)
        self.add(
            f"ttng.async_tma_copy_local_to_global {desc[0]}[%c0, %c0] {tile[0]} :"
            f" {desc[1]}, {tile[1]}",
            3,
        )

    def product(self, a: tuple[str, str], b: tuple[str, str]) -> None:
        """128 x 64 (sm_100) or 64 x 64 (sm_90) in f32."""
        if self.arch == 90:
            acc, kind = self.tensor("64x64xf32", MMA)
            self.value(
                f"ttng.warp_group_dot {a[0]}, {b[0]}, {acc} {{inputPrecision = 0 : i32}} :"
                f" {a[1]} * {b[1]} -> {kind}",
                4,
            )
            return
        kind = self.memory("128x64xf32", TMEM, space="#ttng.tensor_memory")
        acc = self.value(f"ttng.tmem_alloc : () -> {kind}")
        bar, bar_kind = self.barrier()
        self.add(
            f"ttng.tc_gen5_mma {a[0]}, {b[0]}, {acc}, %true, %true, {bar}[%true] {{is_async}} :"
            f" {a[1]}, {b[1]}, {kind}, {bar_kind}",
            4,
        )

    @property
    def text(self) -> str:
        aliases = [f"{name} = {text}" for name, text in self.aliases.items()]
        body = "\n".join(f"    {line}" for line in self.lines)
        return (
            "\n".join(aliases)
            + '\nmodule attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32,'
            + f' ttg.target = "cuda:{self.arch}", "ttg.threads-per-warp" = 32 : i32}} {{\n'
            + f"  tt.func public @seed({', '.join(self.arguments)}) {{\n{body}\n"
            + "    tt.return\n  }\n}\n"
        )


# ---------------------------------------------------------------------------- bank conflicts


def exchange(
    name: str, encoding: str, first: str, second: str, element: str = "f32", size: int = 64,
    arch: int = 90, kinds: tuple[str, ...] = ("bank-conflict",), **rest: Any,
) -> Seed:  # fmt: skip
    """A tile is stored from one register layout, and loaded to another."""
    writer = Writer(arch)
    shape = f"{size}x{size}x{element}"
    tile = writer.alloc(shape, encoding)
    writer.store(tile, shape, first)
    writer.load(tile, shape, second)
    return Seed(name, writer.text, kinds, arch=arch, **rest)


def conflicts() -> Iterator[Seed]:
    plain = swizzled(1, 1, 1)
    for element, rows in ROWS_OF.items():
        yield exchange(f"store-columns-{element}", plain, COLUMNS, rows, element, line=2,
                       said=("storing 64x64", "swizzled_shared"))  # fmt: skip
        yield exchange(f"load-columns-{element}", plain, rows, COLUMNS, element, line=3,
                       said=("loading 64x64",))  # fmt: skip
        yield exchange(f"clean-rows-{element}", plain, rows, rows, element, kinds=())
    for element in ("f32", "i32"):
        yield exchange(f"clean-columns-{element}", swizzled(1, 1, 32), COLUMNS, COLUMNS, element,
                       kinds=())  # fmt: skip
    # Half a row at a time: the second half warp's rows begin in the banks of the first.
    for element in ("f16", "bf16"):
        yield exchange(f"half-rows-{element}", plain, ROWS, ROWS_16, element, line=2,
                       said=("2-way", "64 bits", "sizePerThread = [1, 8]"))  # fmt: skip
    for size in (32, 64, 128):
        yield exchange(f"store-columns-{size}", plain, COLUMNS, ROWS, size=size, line=2)
    yield exchange("few-phases", swizzled(1, 1, 4), COLUMNS, ROWS, line=2, said=("8-way",))
    yield exchange("long-phases", swizzled(1, 8, 8), COLUMNS, ROWS, line=2,
                   kinds=("bank-conflict", "bank-conflict"))  # fmt: skip
    yield exchange("wide-vec", swizzled(16, 1, 4), COLUMNS, ROWS, line=2)
    yield exchange("wrong-order", swizzled(1, 1, 1, "0, 1"), ROWS, ROWS, line=2,
                   kinds=("bank-conflict", "bank-conflict"))  # fmt: skip
    yield exchange("nvmma-by-columns", nvmma(128, "f32"), COLUMNS, ROWS, line=2)
    yield exchange("nvmma-none-by-columns", nvmma(0, "f32"), COLUMNS, ROWS, line=2)
    yield exchange("linear-plain", linear([(1 << i, 0) for i in range(6)]), COLUMNS, ROWS, line=2)
    diagonal = linear([(1 << i, 1 << i) for i in range(6)])
    yield exchange("clean-linear", diagonal, COLUMNS, COLUMNS, kinds=())
    # 64 words of padding after each row of 64: the rows begin in the same bank.
    yield exchange("padding-of-two-lines", padded(64, 64), COLUMNS, ROWS,
                   kinds=("bank-conflict", "padding"), line=2)  # fmt: skip
    accumulator = "f16"
    for arch in (90, 100):
        yield exchange(f"stmatrix-{arch}", nvmma(0), MMA, MMA, accumulator, arch=arch,
                       kinds=("bank-conflict", "bank-conflict"), line=2,
                       said=("stmatrix.x4", "8-way"))  # fmt: skip
        yield exchange(f"clean-stmatrix-{arch}", nvmma(128), MMA, MMA, accumulator, arch=arch,
                       kinds=())  # fmt: skip
    yield through_view("transposed-view", kinds=("bank-conflict",), line=3)
    yield buffered("buffered", swizzled(1, 1, 1), COLUMNS, kinds=("bank-conflict",), line=2)
    yield from_tensor("from-tensor", swizzled(1, 1, 1), COLUMNS,
                      kinds=("bank-conflict", "bank-conflict"), line=1)  # fmt: skip
    yield from_tensor("clean-from-tensor", swizzled(1, 1, 32), COLUMNS)


def through_view(name: str, **rest: Any) -> Seed:
    """Stored by rows, and loaded by rows from the transposed view."""
    writer = Writer()
    tile = writer.alloc("64x64xf32", swizzled(1, 1, 1))
    writer.store(tile, "64x64xf32", ROWS)
    view = writer.trans(tile, "64x64xf32", swizzled(1, 1, 1, "0, 1"))
    writer.load(view, "64x64xf32", ROWS)
    return Seed(name, writer.text, **rest)


def buffered(name: str, encoding: str, registers: str, **rest: Any) -> Seed:
    writer = Writer()
    tiles = writer.alloc("2x64x64xf32", encoding)
    for at in ("%c0", "%c1"):
        tile = writer.index(tiles, at, "64x64xf32", encoding)
        if at == "%c0":
            writer.store(tile, "64x64xf32", registers)
        writer.load(tile, "64x64xf32", ROWS)
    return Seed(name, writer.text, **rest)


def from_tensor(name: str, encoding: str, registers: str, **rest: Any) -> Seed:
    """``local_alloc`` of a tensor."""
    writer = Writer()
    value, kind = writer.tensor("64x64xf32", registers)
    memory = writer.memory("64x64xf32", encoding)
    tile = writer.value(f"ttg.local_alloc {value} : ({kind}) -> {memory}", 1)
    writer.load((tile, memory), "64x64xf32", registers)
    return Seed(name, writer.text, **rest)


# ------------------------------------------------------------------------ swizzles of operands


def operands(
    name: str, a: str, b: str, arch: int = 90, element: str = "f16", k: int = 64, tma: bool = True,
    transposed: str = "", **rest: Any,
) -> Seed:  # fmt: skip
    """A product of two tiles that TMA loads; B may be the transposed view of its tile."""
    writer = Writer(arch)
    m = 64 if arch == 90 else 128
    shapes = f"{m}x{k}x{element}", f"64x{k}x{element}" if transposed else f"{k}x64x{element}"
    tiles = [writer.alloc(shape, enc) for shape, enc in zip(shapes, (a, b), strict=True)]
    for tile, shape, enc in zip(tiles, shapes, (a, b), strict=True):
        if tma:
            writer.tma_load(tile, shape, enc)
    if transposed:
        tiles[1] = writer.trans(tiles[1], f"{k}x64x{element}", transposed)
    writer.product(*tiles)
    return Seed(name, writer.text, arch=arch, **rest)


def swizzles() -> Iterator[Seed]:
    for arch in (90, 100):
        yield operands(f"clean-operands-{arch}", nvmma(128), nvmma(128), arch)
        yield operands(f"clean-transposed-{arch}", nvmma(128), nvmma(128), arch,
                       transposed=nvmma(128, transposed=True))  # fmt: skip
        yield operands(f"unswizzled-a-{arch}", nvmma(0), nvmma(128), arch,
                       kinds=("unswizzled-operand",), line=4,
                       said=("operand A", "128 bytes", "garbage"))  # fmt: skip
        yield operands(f"unswizzled-b-{arch}", nvmma(128), nvmma(0), arch,
                       kinds=("unswizzled-operand",), line=4, said=("operand B",))  # fmt: skip
        for width in (32, 64):
            boxes = 128 // width
            rows = 64 if arch == 90 else 128
            yield operands(
                f"narrow-a-{width}-{arch}", nvmma(width), nvmma(128), arch,
                kinds=("narrow-swizzle",), line=1,
                said=(f"swizzle of {width} bytes", "widen-swizzle", f"1 box of {rows}x64",
                      f"instead of {boxes}"),
            )  # fmt: skip
            yield operands(f"narrow-b-{width}-{arch}", nvmma(128), nvmma(width), arch,
                           kinds=("narrow-swizzle",), line=1)  # fmt: skip
            yield operands(
                f"narrow-transposed-{width}-{arch}", nvmma(128), nvmma(width), arch,
                transposed=nvmma(width, transposed=True), kinds=("narrow-swizzle",), line=1,
            )  # fmt: skip
        # Rows of 32 or 64 bytes allow no wider swizzle.
        yield operands(f"clean-short-{arch}", nvmma(32), nvmma(128), arch, k=16)
        yield operands(f"clean-half-{arch}", nvmma(64), nvmma(128), arch, k=32)
        # Nothing that is counted gets better: no TMA copy, no register move.
        yield operands(f"clean-no-copies-{arch}", nvmma(32), nvmma(32), arch, tma=False)


def copied(name: str, encoding: str, shape: str = "64x128xf16", store: bool = True,
           load: str = "", **rest: Any) -> Seed:  # fmt: skip
    """A tile that TMA loads, and stores again; or that registers load."""
    writer = Writer()
    tile = writer.alloc(shape, encoding)
    writer.tma_load(tile, shape, encoding)
    if store:
        writer.tma_store(tile, shape, encoding)
    if load:
        writer.load(tile, shape, load)
    return Seed(name, writer.text, **rest)


def boxes() -> Iterator[Seed]:
    yield copied("boxes-f16", nvmma(128), kinds=("several-boxes",), line=2,
                 said=("2 boxes of 64x64 (8192 bytes each)", "1 box of 64x128"))  # fmt: skip
    yield copied("boxes-f32", nvmma(128, "f32"), "64x128xf32", kinds=("several-boxes",), line=2,
                 said=("4 boxes",))  # fmt: skip
    yield copied("boxes-i8", nvmma(128, "i8"), "64x256xi8", kinds=("several-boxes",), line=2)
    yield copied("boxes-and-load", nvmma(128), load=ROWS_16, store=False, kinds=("several-boxes",),
                 line=2)  # fmt: skip
    yield copied("narrow-copy-32", nvmma(32), "64x64xf16", kinds=("narrow-swizzle",), line=1)
    yield copied("narrow-copy-64", nvmma(64), "64x64xf16", kinds=("narrow-swizzle",), line=1)
    yield copied("clean-one-box", nvmma(128), "64x64xf16")
    yield copied("clean-plain", nvmma(0), "64x128xf16")
    # Loaded by columns, the swizzle is worth its boxes.
    columns = blocked("1, 8", "32, 1", "1, 4", "1, 0")
    yield copied("clean-swizzle-for-loads", nvmma(128), load=columns, store=False)
    yield copied("clean-256-rows", nvmma(128), "256x64xf16")


# --------------------------------------------------------------------------------------- waste


def paddings() -> Iterator[Seed]:
    yield exchange("padding-saved", padded(64, 4), ROWS, ROWS, kinds=("padding",), line=1,
                   said=("1008 of the 17392 bytes", "swizzled_shared"))  # fmt: skip
    yield exchange("padding-of-one", padded(64, 1), ROWS, COLUMNS,
                   kinds=("misaligned-padding", "padding"), line=2,
                   said=("128-bit accesses", "pad by 4 elements"))  # fmt: skip
    twice = ("misaligned-padding", "misaligned-padding", "padding")
    yield exchange("padding-of-two", padded(64, 2), ROWS, ROWS, kinds=twice, line=2)


def idle() -> Iterator[Seed]:
    def buffers(name: str, count: int, taken: tuple[str, ...], **rest: Any) -> Seed:
        writer = Writer()
        encoding = swizzled(1, 1, 1)
        tiles = writer.alloc(f"{count}x64x64xf32", encoding)
        for at in taken:
            tile = writer.index(tiles, at, "64x64xf32", encoding)
            writer.store(tile, "64x64xf32", ROWS)
            writer.load(tile, "64x64xf32", ROWS)
        return Seed(name, writer.text, **rest)

    yield buffers("idle-buffer", 2, ("%c0",), kinds=("idle-part",), line=1,
                  said=("16384 of the 32768 bytes",))  # fmt: skip
    yield buffers("idle-buffers", 4, ("%c0", "%c2"), kinds=("idle-part",), line=1,
                  said=("32768 of the 65536 bytes", "0, 2"))  # fmt: skip
    yield buffers("clean-buffers", 3, ("%c0", "%c1", "%c2"))

    def slices(name: str, taken: tuple[str, ...], **rest: Any) -> Seed:
        writer = Writer()
        encoding = swizzled(1, 1, 1)
        whole = writer.alloc("64x64xf32", encoding)
        for at in taken:
            part = writer.slice(whole, at, "32x64xf32", "64x64", encoding)
            writer.store(part, "32x64xf32", ROWS)
            writer.load(part, "32x64xf32", ROWS)
        return Seed(name, writer.text, **rest)

    yield slices("idle-half", ("0, 0",), kinds=("idle-part",), line=1,
                 said=("8192 of the 16384 bytes",))  # fmt: skip
    yield slices("clean-halves", ("0, 0", "32, 0"))

    writer = Writer()
    writer.arguments.append("%at: i32")
    encoding = swizzled(1, 1, 1)
    tiles = writer.alloc("4x64x64xf32", encoding)
    tile = writer.index(tiles, "%at", "64x64xf32", encoding)
    writer.store(tile, "64x64xf32", ROWS)
    writer.load(tile, "64x64xf32", ROWS)
    yield Seed("clean-unknown-index", writer.text)


def unread() -> Iterator[Seed]:
    writer = Writer()
    writer.store(writer.alloc("64x64xf32", swizzled(1, 1, 1)), "64x64xf32", ROWS)
    yield Seed("stored-only", writer.text, ("never-read",), 1, ("16384 bytes", "which are written"))

    writer = Writer()
    writer.tma_load(writer.alloc("64x64xf16", nvmma(128)), "64x64xf16", nvmma(128))
    yield Seed("tma-loaded-only", writer.text, ("never-read",), 1, ("8192 bytes",))

    writer = Writer()
    writer.alloc("64x64xf32", swizzled(1, 1, 1))
    yield Seed("untouched", writer.text, ("never-read",), 1, ("nothing writes them",))

    writer = Writer()
    value, kind = writer.tensor("64x64xf32", ROWS)
    memory = writer.memory("64x64xf32", swizzled(1, 1, 1))
    writer.value(f"ttg.local_alloc {value} : ({kind}) -> {memory}", 1)
    yield Seed("allocated-only", writer.text, ("never-read",), 1)

    writer = Writer()
    writer.tma_store(stored_alloc(writer), "64x64xf16", nvmma(128))
    yield Seed("clean-tma-stored", writer.text)


def stored_alloc(writer: Writer) -> tuple[str, str]:
    value, kind = writer.tensor("64x64xf16", ROWS_16)
    memory = writer.memory("64x64xf16", nvmma(128))
    return writer.value(f"ttg.local_alloc {value} : ({kind}) -> {memory}", 1), memory


def permutations() -> Iterator[Seed]:
    """A tile is stored in one layout, and a TMA store takes it in another."""

    def stored(
        name: str, own: str, taken: str, shape: str = "64x64xf16", *, both: bool = False,
        copied: bool = False, **rest: Any,
    ) -> Seed:  # fmt: skip
        writer = Writer()
        tile = writer.alloc("64x64xf16", own)
        view = writer.reinterpret(tile, shape, taken)
        if copied:
            writer.tma_load(tile, "64x64xf16", own)
        else:
            writer.store(tile, "64x64xf16", ROWS_16)
        if both:
            writer.tma_load(view, shape, taken)
        writer.tma_store(view, shape, taken)
        return Seed(name, writer.text, **rest)

    for width in (0, 32, 64):
        yield stored(f"permuted-{width}", nvmma(128), nvmma(width), kinds=("permuted",), line=3,
                     said=("ttg.local_store at seed.py:2", "is taken for element"))  # fmt: skip
    yield stored("permuted-plain", swizzled(1, 1, 1), nvmma(128), kinds=("permuted",), line=3)
    yield stored("permuted-copied", nvmma(128), nvmma(64), copied=True, kinds=("permuted",), line=3)
    yield stored("clean-same-swizzle", swizzled(8, 1, 8), nvmma(128))
    yield stored("clean-both", nvmma(128), nvmma(64), both=True)
    yield stored("clean-other-shape", nvmma(128), nvmma(64), "128x32xf16")


def limits() -> Iterator[Seed]:
    def sized(name: str, shared: int, **rest: Any) -> Seed:
        clean = exchange(name, swizzled(1, 1, 1), ROWS, ROWS, kinds=())
        return Seed(name, clean.text, metadata={"shared": shared}, **rest)

    yield sized("over-the-limit", 232449, kinds=("shared-limit",), line=1,
                said=("1 more than a block may have", "cannot be launched"))  # fmt: skip
    yield sized("at-the-limit", 232448, kinds=("shared-limit",), line=1, said=("0 are left",))
    yield sized("near-the-limit", 230000, kinds=("shared-limit",), line=1, said=("2448 are left",))
    yield sized("clean-200k", 204800)
    # Two blocks share 228 KB, 1 KB of each for the system.
    yield sized("two-blocks", 113 * 1024 + 8, kinds=("blocks-per-sm",), line=1,
                said=("8 bytes less there is room for 2",))  # fmt: skip
    yield sized("clean-two-blocks", 113 * 1024)
    yield sized("three-blocks", 75 * 1024 + 16, kinds=("blocks-per-sm",), line=1,
                said=("room for 2 blocks", "room for 3"))  # fmt: skip
    yield sized("clean-three-blocks", 74 * 1024)
    yield sized("clean-many-blocks", 8 * 1024)


def all_seeds() -> list[Seed]:
    """Every module, with and without faults."""
    makers = (conflicts, swizzles, boxes, paddings, idle, unread, permutations, limits)
    return [seed for make in makers for seed in make()]
