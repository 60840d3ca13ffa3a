"""TTGIR in which a swizzle may not be widened, each with the lines that forbid it.

Without those lines it is widened: that is the control of each test.
"""

from __future__ import annotations

from dataclasses import dataclass

HEADER = """\
#blocked = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#mma = #ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], instrShape = [16, 64, 16]}>
#odd = #ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], instrShape = [16, 48, 16]}>
#narrow = #ttg.nvmma_shared<{swizzlingByteWidth = 32, transposed = false, elementBitWidth = 16}>
#narrow_t = #ttg.nvmma_shared<{swizzlingByteWidth = 32, transposed = true, elementBitWidth = 16}>
#narrow_wide = #ttg.nvmma_shared<{swizzlingByteWidth = 32, transposed = false, elementBitWidth = 32}>
#narrow3 = #ttg.nvmma_shared<{swizzlingByteWidth = 32, transposed = true, elementBitWidth = 16, rank = 3}>
#half = #ttg.nvmma_shared<{swizzlingByteWidth = 64, transposed = false, elementBitWidth = 16}>
#flat = #ttg.nvmma_shared<{swizzlingByteWidth = 0, transposed = false, elementBitWidth = 16}>
#flat_t = #ttg.nvmma_shared<{swizzlingByteWidth = 0, transposed = true, elementBitWidth = 16}>
#flat32 = #ttg.nvmma_shared<{swizzlingByteWidth = 0, transposed = false, elementBitWidth = 32}>
#flat5 = #ttg.nvmma_shared<{swizzlingByteWidth = 0, transposed = false, elementBitWidth = 8, rank = 5}>
#full = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#padded4 = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 8, fp4Padded = true}>
#line = #ttg.nvmma_shared<{swizzlingByteWidth = 0, transposed = false, elementBitWidth = 32, rank = 1}>
#plain = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
"""  # noqa: E501
KERNEL = """\
  tt.func public @kernel(%desc: !tt.tensordesc<64x64xf16, #narrow>, %flat_desc: !tt.tensordesc<16x256xf16, #flat>, %p: !tt.ptr<i8>, %x_ptr: !tt.ptr<f16>, %n: i32, %x: tensor<64x64xf16, #blocked>, %acc: tensor<64x64xf32, #mma>IM2COL) {
    %true = arith.constant true
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c8 = arith.constant 8 : i32
    %c16 = arith.constant 16 : i32
    %c64 = arith.constant 64 : i32
    %s = arith.constant 128 : i64
    %bar = ttg.local_alloc : () -> !ttg.memdesc<1xi64, #plain, #smem, mutable>
"""  # noqa: E501
T = "!ttg.memdesc<64x64xf16, #narrow, #smem, mutable>"
TILE = f"    %tile = ttg.local_alloc : () -> {T}\n"
STORE = f"    ttg.local_store %x, %tile : tensor<64x64xf16, #blocked> -> {T}\n"
END = "    tt.return\n  }\n"
COPY = (
    "    ttng.async_tma_copy_global_to_local {desc}[%c0, %c0] {tile}, %bar, %true :"
    " !tt.tensordesc<{desc_type}>, !ttg.memdesc<1xi64, #plain, #smem, mutable> ->"
    " !ttg.memdesc<{type}, #smem, mutable>\n"
)


def copy(desc: str, tile: str, kind: str) -> str:
    """A TMA copy of a tile from global memory."""
    return COPY.format(desc=desc, tile=tile, desc_type=kind, type=kind)


def kernel(body: str) -> str:
    """The head of the kernel; with a descriptor for im2col (Triton 3.8 on) if it is used."""
    argument = ", %images: !ttng.tensordesc_im2col<64x64xf16, #narrow>"
    return KERNEL.replace("IM2COL", argument if "%images" in body else "")


@dataclass(frozen=True)
class Refusal:
    """Attributes:
    allowed: lines of a kernel that is widened.
    forbidding: lines behind these, which forbid it.
    reason: a part of the remark.
    functions: other functions of the module.
    instead: the forbidding lines take the place of the allowed ones.
    parses: whether Triton takes it, too; its own layouts abort at an accumulator of 48 columns.
    """

    name: str
    allowed: str
    forbidding: str
    reason: str
    functions: str = ""
    instead: bool = False
    parses: bool = True

    def __str__(self) -> str:
        return self.name

    def module(self, forbidden: bool = True) -> str:
        """The text, with or without the forbidding lines."""
        body = self.allowed
        if forbidden:
            body = self.forbidding if self.instead else body + self.forbidding
        return HEADER + kernel(body) + body + END + self.functions + "}\n"


def view(name: str, result: str, operation: str = "memdesc_reinterpret", at: str = "") -> str:
    """A view of the tile."""
    return f"    {name} = ttg.{operation} %tile{at} : {T} -> !ttg.memdesc<{result}>\n"


PRIVATE = f"""\
  tt.func private @other(%arg: {T}) {{
    tt.return
  }}
  tt.func private @with_descriptor(%arg: !tt.tensordesc<64x64xf16, #narrow>) {{
    tt.return
  }}
"""
MADE = """\
    %made = ttg.global_scratch_alloc {alignment = 128 : i32, nbytes = 128 : i32} : !tt.ptr<i8>
    ttng.tensormap_create %made, %x_ptr, [BOX, %c64], [%n, %n], [%s], [%c1, %c1] {elem_type = 6 : i32, fill_mode = 0 : i32, interleave_layout = 0 : i32, swizzle_mode = 1 : i32} : (!tt.ptr<i8>, !tt.ptr<f16>, i32, i32, i32, i32, i64, i32, i32) -> ()
    ttng.tensormap_fenceproxy_acquire %made : !tt.ptr<i8>
    %mine = ttng.reinterpret_tensor_descriptor %made : !tt.ptr<i8> to !tt.tensordesc<64x64xf16, #narrow>
"""  # noqa: E501
NARROW = "64x64xf16, #narrow"


def operand(encoding: str, b_encoding: str, columns: int = 64) -> str:
    """A wgmma of two tiles in shared memory."""
    a, b = f"64x{columns}xf16, {encoding}, #smem", f"{columns}x64xf16, {b_encoding}, #smem"
    return (
        f"    %a = ttg.local_alloc : () -> !ttg.memdesc<{a}, mutable>\n"
        f"    %b = ttg.local_alloc : () -> !ttg.memdesc<{b}, mutable>\n"
        "    %d = ttng.warp_group_dot %a, %b, %acc {inputPrecision = 0 : i32} :"
        f" !ttg.memdesc<{a}, mutable> * !ttg.memdesc<{b}, mutable> -> tensor<64x64xf32, #mma>\n"
    )


def large(*sizes: int) -> str:
    """Further shared memory."""
    return "".join(
        f"    %large{i} = ttg.local_alloc : () -> !ttg.memdesc<{size}xi8, #plain, #smem, mutable>\n"
        for i, size in enumerate(sizes)
    )


REFUSALS = [
    Refusal(
        "bytes", TILE + STORE, view("%v", "8192xi8, #plain, #smem, mutable"),
        "sees it as #ttg.swizzled_shared",
    ),
    Refusal(
        "another-shape", TILE + STORE, view("%v", "32x128xf16, #narrow, #smem, mutable"),
        "memdesc_reinterpret shows its bytes as 32x128xf16",
    ),
    Refusal(
        "another-width", TILE + STORE, view("%v", "64x32xi32, #narrow_wide, #smem, mutable"),
        "memdesc_reinterpret shows its bytes as 64x32xi32",
    ),
    Refusal(
        "another-swizzle", TILE + STORE, view("%v", "64x64xf16, #half, #smem, mutable"),
        "sees it with a swizzle of 64 bytes",
    ),
    Refusal(
        "columns-of-an-atom", TILE + STORE,
        view("%v", "64x16xf16, #narrow, #smem, mutable, 64x64", "memdesc_subslice", "[0, 16]"),
        "a part of it that cuts the atoms",
    ),
    Refusal(
        "called", TILE + STORE, f"    tt.call @other(%tile) : ({T}) -> ()\n",
        "a function that is called", PRIVATE,
    ),
    Refusal(
        "descriptor-called", TILE + copy("%desc", "%tile", NARROW),
        "    tt.call @with_descriptor(%desc) : (!tt.tensordesc<64x64xf16, #narrow>) -> ()\n",
        "a function that is called", PRIVATE,
    ),
    Refusal(
        "unknown-operation", TILE + STORE,
        f"    %u = builtin.unrealized_conversion_cast %tile : {T} to i32\n",
        "builtin.unrealized_conversion_cast takes it",
    ),
    Refusal(
        "unknown-origin", TILE + STORE,
        f"    %u = builtin.unrealized_conversion_cast %n : i32 to {T}\n"
        f"    %v = ttg.local_load %u : {T} -> tensor<64x64xf16, #blocked>\n",
        "builtin.unrealized_conversion_cast makes it", instead=True,
    ),
    Refusal(
        "alignment", TILE + STORE,
        TILE.replace("local_alloc :", "local_alloc {alignment = 256 : i32} :") + STORE,
        "multiples of 256 bytes", instead=True,
    ),
    Refusal(
        "transposed-rank-3", TILE + STORE,
        "    %cube = ttg.local_alloc : () -> !ttg.memdesc<64x8x8xf16, #narrow3, #smem, mutable>\n",
        "transposed and of rank 3", instead=True,
    ),
    Refusal(
        "mma-without-swizzle", operand("#narrow", "#narrow", 32), operand("#flat", "#full", 16),
        "rows of 16 bytes", instead=True,
    ),
    Refusal(
        "mma-of-narrow-core-matrices", operand("#narrow", "#narrow_t", 64),
        operand("#full", "#flat_t", 64), "rows of 16 bytes", instead=True,
    ),
    Refusal(
        "mma-of-an-odd-width", operand("#narrow", "#narrow", 32),
        "    %z = arith.constant dense<0.000000e+00> : tensor<64x64xf32, #odd>\n"
        + operand("#half", "#narrow", 32).replace("%acc", "%z").replace("#mma", "#odd"),
        "cannot read it: M or N must divide that of the tile", instead=True, parses=False,
    ),
    Refusal(
        "descriptor-of-others", TILE + copy("%desc", "%tile", NARROW),
        TILE
        + "    %theirs = ttng.reinterpret_tensor_descriptor %p :"
        " !tt.ptr<i8> to !tt.tensordesc<64x64xf16, #narrow>\n"
        + copy("%theirs", "%tile", NARROW),
        "memory that others may write", instead=True,
    ),
    Refusal(
        "descriptor-of-another-box", TILE + MADE.replace("BOX", "%c16")
        + copy("%mine", "%tile", NARROW),
        TILE + MADE.replace("BOX", "%c8") + copy("%mine", "%tile", NARROW),
        "a box that is not its tile's", instead=True,
    ),
    Refusal(
        "descriptor-of-an-unknown-box", TILE + MADE.replace("BOX", "%c16")
        + copy("%mine", "%tile", NARROW),
        TILE + MADE.replace("BOX", "%n") + copy("%mine", "%tile", NARROW),
        "a box that is not its tile's", instead=True,
    ),
    Refusal(
        "descriptor-that-escapes", TILE + MADE.replace("BOX", "%c16")
        + copy("%mine", "%tile", NARROW),
        "    %seen = tt.ptr_to_int %made : !tt.ptr<i8> -> i64\n", "sees the descriptor's memory",
    ),
    Refusal(
        "descriptor-that-nothing-makes", TILE + MADE.replace("BOX", "%c16")
        + copy("%mine", "%tile", NARROW),
        TILE
        + "".join(
            line + "\n" for line in MADE.splitlines() if "tensormap_create" not in line
        )
        + copy("%mine", "%tile", NARROW),
        "nothing makes its descriptor", instead=True,
    ),
    Refusal(
        "one-descriptor", TILE + STORE + copy("%desc", "%tile", NARROW),
        f"    %second = ttg.local_alloc : () -> {T}\n"
        + copy("%desc", "%second", NARROW)
        + f"    %v = ttg.memdesc_reinterpret %second : {T} ->"
        " !ttg.memdesc<8192xi8, #plain, #smem, mutable>\n",
        "sees it as #ttg.swizzled_shared",
    ),
    Refusal(
        "im2col", TILE + STORE,
        "    %o = arith.constant 0 : i16\n"
        + copy("%images", "%tile", NARROW)
        .replace("[%c0, %c0] %tile", "[%c0, %c0, %c0, %c0] offsets = [%o, %o] %tile")
        .replace("!tt.tensordesc", "!ttng.tensordesc_im2col"),
        "a descriptor that is not known here",
    ),
    Refusal(
        "full-shared-memory", TILE + STORE, large(131072, 65536, 16384, 8192, 2048, 512),
        "enough shared memory",
    ),
    Refusal(
        "more-copies", TILE + STORE,
        "    %wide = ttg.local_alloc : () -> !ttg.memdesc<16x256xf16, #flat, #smem, mutable>\n"
        + copy("%flat_desc", "%wide", "16x256xf16, #flat"),
        "1 TMA copies would become 4", instead=True,
    ),
    Refusal(
        "more-conflicts", TILE + STORE,
        "    %sums = ttg.local_alloc : () ->"
        " !ttg.memdesc<64x64xf32, #narrow_wide, #smem, mutable>\n"
        "    ttg.local_store %acc, %sums : tensor<64x64xf32, #mma> ->"
        " !ttg.memdesc<64x64xf32, #narrow_wide, #smem, mutable>\n",
        "wavefronts instead of", instead=True,
    ),
]  # fmt: skip

SILENT = {
    "widest": "    %t = ttg.local_alloc : () -> !ttg.memdesc<64x64xf16, #full, #smem, mutable>\n",
    "fills-its-row": (
        "    %t = ttg.local_alloc : () -> !ttg.memdesc<64x16xf16, #narrow, #smem, mutable>\n"
    ),
    "too-few-rows": (
        "    %t = ttg.local_alloc : () -> !ttg.memdesc<4x64xf16, #flat, #smem, mutable>\n"
    ),
    "rank-1": "    %t = ttg.local_alloc : () -> !ttg.memdesc<64xf32, #line, #smem, mutable>\n",
    "padded-fp4": (
        "    %t = ttg.local_alloc : () -> !ttg.memdesc<128x64xi8, #padded4, #smem, mutable>\n"
    ),
}
"""Memory that has the widest swizzle that fits it: there is nothing to say."""
