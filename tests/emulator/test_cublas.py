"""Triton's own way to cuBLASLt, by which its tutorials measure themselves, on the emulated GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402

import triton_ext  # noqa: E402


@pytest.fixture
def library():
    """What scripts make at their import, from the workspace that Triton's tutorials give it."""
    from triton._C.libtriton import nvidia

    with triton_ext.emulate("sm_100", cuda_on_host=True):
        yield nvidia.cublas.CublasLt(torch.empty(1 << 20, device="cuda", dtype=torch.uint8))


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float8_e4m3fn", "float32"])
def test_a_product(library, kind):
    dtype = getattr(torch, kind)
    a, b = (torch.randint(-2, 3, (rows, 48)).to(dtype) for rows in (32, 80))
    c = torch.empty(32, 80).to(dtype)
    library.matmul(a, b, c)
    assert torch.equal(c.double(), (a.double() @ b.double().T).to(dtype).double())
    old = torch.randint(-2, 3, (32, 80)).half()
    library.gemm(a, b, old, c, 0.5, 2.0)
    assert torch.equal(c.double(), (0.5 * a.double() @ b.double().T + 2 * old).to(dtype).double())


@pytest.mark.parametrize(
    ("name", "elements", "scales", "vector"),
    [
        ("mxfp8", ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, 32),
        ("nvfp4", ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn, 16),
    ],
)
def test_block_scaled_products(library, name, elements, scales, vector):
    """Against ml_dtypes' values, and a loop over rows and columns for where a factor lies."""
    rng = np.random.default_rng(7)
    m, n, k = 160, 128, 192
    values, given = [], []
    for rows in (m, n):
        tile = rng.integers(-2, 3, (rows, k)).astype(elements)
        factors = 2.0 ** rng.integers(-1, 2, (rows, k // vector))
        blocks = -(-k // vector // 4)
        flat = np.zeros(-(-rows // 128) * blocks * 512, scales)
        for row in range(rows):
            for column in range(k // vector):
                block = row // 128 * blocks + column // 4
                flat[block * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4] = factors[
                    row, column
                ]
        values.append(tile.astype(np.float64) * factors.repeat(vector, axis=1))
        codes = tile.view(np.uint8)
        packed = codes[:, ::2] | codes[:, 1::2] << 4 if name == "nvfp4" else codes
        kind = torch.uint8 if name == "nvfp4" else torch.float8_e4m3fn
        given.append((torch.from_numpy(packed).view(kind), torch.from_numpy(flat.view(np.uint8))))
    (a, scale_a), (b, scale_b) = given
    out = torch.empty(m, n, dtype=torch.float16)
    getattr(library, f"block_scaled_matmul_{name}")(a, b, out, scale_a, scale_b)
    assert np.array_equal(out.numpy(), (values[0] @ values[1].T).astype(np.float16))
    with pytest.raises(RuntimeError, match="scale factors: there must be"):
        getattr(library, f"block_scaled_matmul_{name}")(a, b, out, scale_a[:100], scale_b)


def test_what_it_refuses(library):
    a, b, c = (torch.zeros(shape).half() for shape in ((16, 32), (16, 32), (16, 16)))
    with pytest.raises(RuntimeError, match="must be contiguous"):
        library.matmul(a, torch.zeros(32, 16).half().T, c)
    with pytest.raises(RuntimeError, match=r"they must be \(M, K\), \(N, K\)"):
        library.matmul(a, b[:8], c)
    with pytest.raises(RuntimeError, match="they must be torch"):
        library.matmul(a, b, c.float())
