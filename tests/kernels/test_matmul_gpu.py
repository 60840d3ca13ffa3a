"""`triton_ext.matmul` on a real GPU, against float64."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import plan_launch  # noqa: E402
from kernel_configurations import (  # noqa: E402
    BATCHED,
    EMULATED,
    EMULATED_SM100,
    WITH_RESIDUAL,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor  # noqa: E402

import triton_ext  # noqa: E402
from triton_ext.compat import TRITON_VERSION  # noqa: E402
from triton_ext.kernels.choice.choose import choose_config  # noqa: E402
from triton_ext.kernels.choice.problem import Problem  # noqa: E402
from triton_ext.kernels.epilogue import NO_EPILOGUE  # noqa: E402
from triton_ext.kernels.launch import (  # noqa: E402
    compilation_options,
    kernel_constants,
    kernel_for,
)
from triton_ext.kernels.product import ProductSpec  # noqa: E402
from triton_ext.kernels.spec import KernelSpec, kernel_spec  # noqa: E402
from triton_ext.kernels.tile import SimpleTile  # noqa: E402
from triton_ext.layouts.triton.gluon import to_gluon  # noqa: E402

# What a correctly rounded product may be off by, relative to its Frobenius norm: half a unit in
# the last place of each element. fp32 accumulation adds far less.
UNIT_ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
SHAPES = [
    # square
    (128, 128, 64), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (4096, 4096, 4096),
    # skinny
    (1, 4096, 4096), (16, 4096, 1024), (64, 11008, 4096), (4096, 1, 4096), (4096, 16, 512),
    (8192, 64, 128), (2, 2, 8192), (1, 1, 1), (65, 16, 64), (4096, 8, 8),
    # odd: tails in every dimension, rows that TMA cannot read without a copy
    (127, 129, 63), (129, 257, 65), (1000, 1000, 1000), (333, 777, 111), (17, 23, 29),
    (255, 511, 1023), (1, 7, 3), (13, 4095, 77), (2049, 100, 33), (640, 48, 200), (300, 264, 136),
    # huge K
    (128, 128, 65536), (64, 256, 100000), (1, 8, 131072), (256, 128, 99999),
    # tall and wide
    (20000, 128, 64), (128, 20000, 64), (10240, 320, 40),
]  # fmt: skip
pytestmark = pytest.mark.usefixtures("poisoned_memory")
MAJORS = [("K", "K"), ("K", "MN"), ("MN", "K"), ("MN", "MN")]
BOTH_GPUS = [pytest.param(90, marks=pytest.mark.sm90), pytest.param(100, marks=pytest.mark.sm100)]


def operands(m, n, k, dtype, a_major="K", b_major="MN", seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    a = torch.randn((m, k), generator=generator, device="cuda", dtype=dtype)
    b = torch.randn((k, n), generator=generator, device="cuda", dtype=dtype)
    if a_major == "MN":
        a = a.T.contiguous().T
    if b_major == "K":
        b = b.T.contiguous().T
    return a, b


def descriptor(matrix, tile):
    """A descriptor of a matrix whose rows are contiguous."""
    layout = to_gluon(tile.tma_encoding)
    return TensorDescriptor.from_tensor(matrix, list(tile.tma_shape), layout)


def assert_correct(out, a, b):
    expected = a.double() @ b.double()
    assert out.shape == expected.shape
    assert out.dtype == a.dtype
    assert out.is_contiguous()
    assert torch.isfinite(out).all(), "an element was not written"
    error = (out.double() - expected).norm() / expected.norm()
    assert error < UNIT_ROUNDOFF[a.dtype], f"relative error {error:.2e}"


@pytest.mark.parametrize("arch", BOTH_GPUS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_shapes(arch, shape, dtype):
    a, b = operands(*shape, dtype)
    assert_correct(triton_ext.matmul(a, b), a, b)


@pytest.mark.parametrize("arch", BOTH_GPUS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("shape", [(512, 384, 256), (200, 328, 136), (33, 65, 17)])
@pytest.mark.parametrize("majors", MAJORS)
def test_major_ness(arch, dtype, shape, majors):
    a, b = operands(*shape, dtype, *majors)
    assert_correct(triton_ext.matmul(a, b), a, b)


@pytest.mark.parametrize("arch", BOTH_GPUS)
@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("majors", MAJORS)
@pytest.mark.parametrize("block", [(128, 64, 64), (128, 128, 128), (128, 256, 64)])
def test_swizzles(arch, swizzle, majors, block):
    a, b = operands(384, 512, 320, torch.float16, *majors)
    sizes = dict(zip(("block_m", "block_n", "block_k"), block, strict=True))
    config = kernel_spec(
        arch, "fp16", *majors, **sizes, stages=2, a_swizzle=swizzle, b_swizzle=swizzle
    )
    assert_correct(triton_ext.matmul(a, b, config=config), a, b)


@pytest.mark.parametrize("arch", BOTH_GPUS)
def test_same_bits_as_with_nvmma_encodings(arch):
    a, b = operands(512, 704, 896, torch.float16)
    config = kernel_spec(arch, "fp16", b_major="MN")
    theirs = torch.empty((512, 704), device="cuda", dtype=a.dtype)
    kernel_for(config)[(4 * 6,)](
        descriptor(a, config.layouts.a),
        descriptor(b, config.layouts.b),
        descriptor(theirs, config.layouts.c),
        group=8,
        **kernel_constants(config, generated_layouts=False),
        **compilation_options(config),
    )
    assert torch.equal(triton_ext.matmul(a, b, config=config), theirs)


@pytest.mark.parametrize("arch", BOTH_GPUS)
def test_views_that_tma_cannot_read(arch):
    base = torch.randn((300, 400), device="cuda", dtype=torch.bfloat16)
    for a in (
        base[1:, 3:131],  # rows start off 16 bytes
        base[::2, ::3],  # no contiguous dimension
        base[:1, :128].expand(64, 128),  # all rows the same memory
        base.T[5:, 8:],
    ):
        b = torch.randn((a.shape[1], 72), device="cuda", dtype=a.dtype)
        assert_correct(triton_ext.matmul(a, b), a, b)


@pytest.mark.sm90
def test_triton_compiles_an_operand_without_swizzle_to_garbage():
    """Why `KernelSpec` refuses swizzle 0: the compiler takes it, and the product is wrong."""
    assert TRITON_VERSION == (3, 9), "seen with Triton 3.9; look again, and amend the README"
    tile = SimpleTile(90, block_n=64, block_k=16, stages=2, a_swizzle=0, b_swizzle=0)
    config = KernelSpec.unchecked(ProductSpec("fp16"), NO_EPILOGUE, tile)
    a, b = operands(256, 128, 64, torch.float16, b_major="K")
    for generated in (True, False):
        constants = kernel_constants(config, generated_layouts=generated)
        out = torch.zeros((256, 128), device="cuda", dtype=torch.float16)
        kernel_for(config)[(4,)](
            descriptor(a, config.layouts.a),
            descriptor(b.T, config.layouts.b),
            descriptor(out, config.layouts.c),
            group=8,
            **constants,
            **compilation_options(config),
        )
        expected = a.double() @ b.double()
        assert (out.double() - expected).norm() > 0.5 * expected.norm()


@pytest.mark.parametrize("arch", BOTH_GPUS)
def test_integers_are_exact(arch):
    generator = torch.Generator("cuda").manual_seed(1)
    a = torch.randint(-4, 5, (257, 129), generator=generator, device="cuda").half()
    b = torch.randint(-4, 5, (129, 65), generator=generator, device="cuda").half()
    assert torch.equal(triton_ext.matmul(a, b).double(), a.double() @ b.double())


@pytest.mark.parametrize("arch", BOTH_GPUS)
def test_empty(arch):
    for m, n, k in ((0, 8, 8), (8, 0, 8), (8, 8, 0)):
        a = torch.ones((m, k), device="cuda", dtype=torch.float16)
        b = torch.ones((k, n), device="cuda", dtype=torch.float16)
        assert torch.equal(triton_ext.matmul(a, b), a @ b)


# ------------------------------------------------------------------ the kernel with consumers

# Random numbers: half a unit in the last place of C, and what the sums lose. fp8 products are cut
# off 13 bits below the largest before they are added, and tf32 drops 13 bits of its operands.
TOLERANCE = {
    "e4m3": 2.0**-9, "e5m2": 2.0**-9, "e5m2_e4m3": 2.0**-9, "e4m3_e5m2": 2.0**-9, "tf32": 2.0**-10,
}  # fmt: skip


def on_the_gpu(config, m, n, k, exact, seed=0, workspace=None, shared=""):
    """C of a random problem on this GPU, and its definition."""
    a, b, extras, expected = plan_launch.problem(config, m, n, k, "cuda", exact, seed, shared)
    gpu = torch.cuda.get_device_properties()
    out = plan_launch.launch(config, a, b, extras, gpu.multi_processor_count, workspace)
    return out, expected


@pytest.mark.parametrize(
    ("fields", "shared"),
    [
        pytest.param(fields, *shared or [""], marks=mark, id=str(sorted(fields)))
        for mark, cases in (
            (pytest.mark.sm90, EMULATED + WITH_RESIDUAL + BATCHED),
            (pytest.mark.sm100, EMULATED_SM100),
        )
        for fields, _, _, _, _, *shared in cases
    ],
)
@pytest.mark.parametrize("shape", [(8, 64, 64), (264, 528, 1104), (1000, 2048, 4096)])
def test_configurations_with_consumers(fields, shared, shape):
    config = kernel_spec(**({"arch": 90, "element_type": "bf16"} | fields))
    if config.tile.loaded_rows:
        m, n, k = shape
        shape = (
            (m, config.tile.loaded_rows, k)
            if config.tile.swap_ab
            else (config.tile.loaded_rows, n, k)
        )
    for exact in (True, False):
        out, expected = on_the_gpu(config, *shape, exact, shared=shared)
        bound = plan_launch.ROUNDING[config.product.c_type] * 1.01
        if config.epilogue.activation:
            bound += 2.0**-20  # exp and erf are approximations
        if not exact or config.product.scaling:  # whose sums need more than 24 bits
            bound += TOLERANCE.get(config.product.element_type, 2.0**-17)
        assert plan_launch.relative_error(out, expected) <= bound


@pytest.mark.parametrize("arch", BOTH_GPUS)
@pytest.mark.parametrize("element_type", ["bf16", "fp16", "e4m3", "e5m2", "tf32", "int8"])
def test_random_problems(arch, element_type):
    """100 shapes, as the cost model serves them; exact inputs: C is the rounded exact result."""
    generator = random.Random(element_type)
    out_type = "bf16" if element_type in ("e4m3", "e5m2") else None
    for seed in range(100):
        m, n, k = (int(2 ** generator.uniform(0, top)) for top in (12, 12, 12.5))
        n, k = 8 * -(-n // 8), 16 * -(-k // 16)  # rows that TMA can read without a copy
        majors = ("K", "K")
        if element_type in ("bf16", "fp16") and m % 8 == 0:
            majors = generator.choice(MAJORS)
        config = choose_config(arch, ProductSpec(element_type, *majors, out_type), Problem(m, n, k))
        out, expected = on_the_gpu(config, m, n, k, True, seed)
        assert torch.equal(out, expected.to(out.dtype)), (m, n, k, config)


@pytest.mark.sm90
def test_split_k_gives_the_same_bits_in_every_run():
    """The parts come in another order every time, and are added in the same one."""
    config = kernel_spec(90, "bf16", block_n=128, stages=4, consumers=2, split_k=8, out_type="fp32")
    workspace = torch.zeros(1 << 26, dtype=torch.uint8, device="cuda")
    first, _ = on_the_gpu(config, 512, 1024, 8192, False, 0, workspace)  # 32 tiles in 4 parts
    for _ in range(50):
        again, _ = on_the_gpu(config, 512, 1024, 8192, False, 0, workspace)
        assert torch.equal(first, again)
    assert not workspace[:8192].any()  # ready for the next launch
