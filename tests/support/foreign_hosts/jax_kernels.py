"""JAX's own GPU kernels, ``jax.experimental.pallas.ops.gpu``, and tokamax', beside numpy.

A program for an environment that has jax and its CUDA plugin; nothing of this project is imported.
``python jax_kernels.py KERNEL ...`` runs kernels on the GPU that JAX finds, and prints a line of
JSON for each: its name, and how far what it gave is from what is right (the norm of the difference
by that of what is right) with how far it may be. ``--mended=[MODULE, OLD, NEW]`` (JSON) changes a
part of a module's text before it is imported.
"""

import importlib
import importlib.machinery
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

RANDOM = np.random.default_rng(0)
HALF = 2e-3
"""How far sums of 16-bit numbers may be apart that are rounded to 16 bits."""


def ops(name):
    return importlib.import_module(f"jax.experimental.pallas.ops.gpu.{name}")


def mend(name, old, new):
    """Have a part of a module's text changed when it is imported."""
    loader = importlib.machinery.SourceFileLoader
    unchanged = loader.get_code

    def get_code(self, fullname):
        if fullname != name:
            return unchanged(self, fullname)
        text = self.get_source(fullname)
        assert old in text, old
        return compile(text.replace(old, new), self.path, "exec")

    loader.get_code = get_code


def numbers(*shape, dtype=np.float16):
    return jnp.asarray(RANDOM.standard_normal(shape), dtype)


def wide(array):
    return np.asarray(array).astype(np.float64)


def softmax_of(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def weights_of(q, k, scale, causal=False):
    """(batch, heads, queries, keys), of (batch, tokens, heads, width)."""
    k = np.repeat(wide(k), q.shape[2] // k.shape[2], axis=2)
    scores = scale * np.einsum("bqhc,bkhc->bhqk", wide(q), k)
    if causal:
        scores = np.where(np.tri(*scores.shape[2:], dtype=bool), scores, -np.inf)
    return softmax_of(scores)


def attention_of(q, k, v, scale=1.0, causal=False):
    v = np.repeat(wide(v), q.shape[2] // v.shape[2], axis=2)
    return np.einsum("bhqk,bkhc->bqhc", weights_of(q, k, scale, causal), v)


def attention_gradients(q, k, v, given, scale=1.0):
    """Those of q, k and v, of as many heads each."""
    weights = weights_of(q, k, scale)
    of_weights = np.einsum("bqhc,bkhc->bhqk", wide(given), wide(v))
    inner = (weights * of_weights).sum(-1, keepdims=True)
    of_scores = scale * weights * (of_weights - inner)
    return (
        np.einsum("bhqk,bkhc->bqhc", of_scores, wide(k)),
        np.einsum("bhqk,bqhc->bkhc", of_scores, wide(q)),
        np.einsum("bhqk,bqhc->bkhc", weights, wide(given)),
    )


def ragged_of(a, b, sizes):
    ends = np.cumsum(sizes)
    parts = []
    for b_of_group, size, end in zip(wide(b), sizes, ends, strict=True):
        parts.append(wide(a)[end - size : end] @ b_of_group)
    return np.concatenate(parts)


def plain_jit():
    """What XLA compiles itself: an elementwise operation and a reduction."""
    x = numbers(37, 1000, dtype=np.float32)
    yield jax.jit(lambda x: (2 * x + 1).sum(1))(x), (2 * wide(x) + 1).sum(1), 1e-6
    yield jax.jit(jnp.sort)(x[:, :100]), np.sort(wide(x[:, :100])), 0.0


def plain_dot():
    """A product that XLA compiles by Triton; the environment has the flag that asks for it."""
    a, b = numbers(128, 64), numbers(64, 128)
    yield jnp.dot(a, b), wide(a) @ wide(b), HALF


def softmax():
    x = numbers(16, 250, dtype=np.float32)
    yield ops("softmax").softmax(x), softmax_of(wide(x)), 1e-6


def _norm(function, x, gradient, definition):
    w, b = numbers(x.shape[1], dtype=np.float32), numbers(x.shape[1], dtype=np.float32)
    found, back = jax.vjp(function, x[None], w, b)
    normal, of_input = definition(wide(x), wide(w) * wide(gradient))
    yield found[0], normal * wide(w) + wide(b), 1e-5
    expected = of_input, (wide(gradient) * normal).sum(0), wide(gradient).sum(0)
    of_x, *others = back(gradient[None])
    for a, b in zip((of_x[0], *others), expected, strict=True):
        yield a, b, 1e-5


def layer_norm():
    def definition(x, of_normal):
        mean = x.mean(1, keepdims=True)
        factor = 1 / np.sqrt(x.var(1, keepdims=True) + 1e-5)
        normal = (x - mean) * factor
        means = of_normal.mean(1, keepdims=True), (of_normal * normal).mean(1, keepdims=True)
        return normal, factor * (of_normal - means[0] - normal * means[1])

    x, gradient = numbers(8, 128, dtype=np.float32), numbers(8, 128, dtype=np.float32)
    yield from _norm(ops("layer_norm").layer_norm, x, gradient, definition)


def rms_norm():
    def definition(x, of_normal):
        factor = 1 / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5)
        normal = x * factor
        return normal, factor * (of_normal - normal * (of_normal * normal).mean(1, keepdims=True))

    x, gradient = numbers(8, 128, dtype=np.float32), numbers(8, 128, dtype=np.float32)
    yield from _norm(ops("rms_norm").rms_norm, x, gradient, definition)


def mha():
    q, k, v, given = (numbers(1, 128, 2, 64) for _ in range(4))

    def run(q, k, v):
        return ops("attention").mha(q, k, v, None, sm_scale=0.125)

    found, back = jax.vjp(run, q, k, v)
    yield found, attention_of(q, k, v, 0.125), HALF
    for a, b in zip(back(given), attention_gradients(q, k, v, given, 0.125), strict=True):
        yield a, b, 3e-3
    causal = ops("attention").mha(q, k, v, None, sm_scale=0.125, causal=True)
    yield causal, attention_of(q, k, v, 0.125, causal=True), HALF


def decode_attention():
    q, k, v = numbers(2, 32, 64), numbers(2, 256, 2, 64), numbers(2, 256, 2, 64)
    expected = attention_of(q[:, None], k, v, 0.125)[:, 0]
    yield ops("decode_attention").gqa(q, k, v, k_splits=2, block_k=64), expected, HALF


def paged_attention():
    q, pages = numbers(2, 32, 64), 8
    k, v = numbers(2, pages, 16, 64), numbers(2, pages, 16, 64)
    tables = np.array([[3, 0, 6, 1], [7, 2, 4, 5]], np.int32)
    found = ops("paged_attention").paged_attention(
        q, k, v, jnp.asarray(tables), jnp.asarray([64, 50], jnp.int32), k_splits=2,
        pages_per_compute_block=2,
    )  # fmt: skip
    for row, length in enumerate((64, 50)):
        here = [
            np.asarray(each)[:, tables[row]].reshape(2, 64, 64).swapaxes(0, 1)[None, :length]
            for each in (k, v)
        ]
        yield found[row], attention_of(q[row][None, None], *here)[0, 0], HALF


def _hopper_matmul(shape=(256, 256, 128), addend=False, **chosen):
    module = ops("hopper_matmul_mgpu")
    m, n, k = shape
    a, b = numbers(m, k), numbers(k, n)
    c = numbers(m, n) if addend else None
    if chosen.get("cluster_dimension"):
        chosen["cluster_dimension"] = module.MatmulDimension[chosen["cluster_dimension"]]
    config = module.TuningConfig(
        **{"tile_m": 64, "tile_n": 64, "tile_k": 64, "max_concurrent_steps": 2, **chosen}
    )
    expected = wide(a) @ wide(b) + (wide(c) if addend else 0)
    yield module.matmul(a, b, c, config), expected, HALF


def hopper_matmul():
    yield from _hopper_matmul()
    yield from _hopper_matmul((192, 256, 192), addend=True, tile_n=128, epi_tile_n=None)


def hopper_matmul_clusters():
    yield from _hopper_matmul(cluster_dimension="M")
    yield from _hopper_matmul(cluster_dimension="N")


def hopper_mixed_type_matmul():
    module = ops("hopper_mixed_type_matmul_mgpu")
    a = jnp.asarray(RANDOM.integers(-128, 127, (128, 128)), jnp.int8)
    b = numbers(128, 128, dtype=jnp.bfloat16)
    config = module.TuningConfig(tile_m=64, tile_n=64, tile_k=64, max_concurrent_steps=2)
    found = module.mixed_matmul_kernel(a, b, out_dtype=jnp.bfloat16, config=config)
    yield found, wide(a) @ wide(b), 8e-3


def _attention_mgpu(function="attention", heads=(2, 1), backward=False, **chosen):
    module = ops("attention_mgpu")
    q, given = (0.3 * numbers(1, 128, heads[0], 64) for _ in range(2))
    k, v = (0.3 * numbers(1, 128, heads[1], 64) for _ in range(2))
    blocks = ("block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq")
    config = module.TuningConfig(
        block_q=64, block_kv=64, max_concurrent_steps=2, **chosen,
        **dict.fromkeys(blocks if backward else (), 64),
    )  # fmt: skip

    def run(q, k, v):
        return getattr(module, function)(q, k, v, config)

    if not backward:
        yield run(q, k, v), attention_of(q, k, v, 1.0, chosen.get("causal", False)), 3e-3
        return
    found, back = jax.vjp(run, q, k, v)
    yield found, attention_of(q, k, v), 3e-3
    for a, b in zip(back(given), attention_gradients(q, k, v, given), strict=True):
        yield a, b, 5e-3


def attention_mgpu():
    yield from _attention_mgpu()


def attention_mgpu_causal():
    yield from _attention_mgpu(causal=True)


def attention_mgpu_backward():
    yield from _attention_mgpu(heads=(1, 1), backward=True)


def attention_mgpu_pipelined():
    yield from _attention_mgpu("attention_with_pipeline_emitter")


def _ragged_dot(transposed):
    a, sizes = numbers(192, 128), np.array([70, 0, 90, 32], np.int32)
    b = numbers(4, 128, 128)
    found = ops("ragged_dot_mgpu").ragged_dot(
        a, b, group_sizes=jnp.asarray(sizes), block_m=64, block_n=64, block_k=64,
        max_concurrent_steps=2, grid_block_n=1, transpose_rhs=transposed,
    )  # fmt: skip
    yield found, ragged_of(a, wide(b).swapaxes(1, 2) if transposed else b, sizes), HALF


def ragged_dot():
    yield from _ragged_dot(False)
    yield from _ragged_dot(True)


def transposed_ragged_dot():
    a, b, sizes = numbers(192, 128), numbers(192, 128), np.array([64, 0, 90, 38], np.int32)
    found = ops("transposed_ragged_dot_mgpu").transposed_ragged_dot(
        a, b, group_sizes=jnp.asarray(sizes), block_m=64, block_n=64, block_k=64,
        max_concurrent_steps=2, grid_block_n=1,
    )  # fmt: skip
    for group, (end, size) in enumerate(zip(np.cumsum(sizes), sizes, strict=True)):
        part = slice(end - size, end)
        if size:
            yield found[group], wide(a)[part].T @ wide(b)[part], HALF


def _blackwell_matmul(collective):
    module = ops("blackwell_matmul_mgpu")
    a, b = numbers(256, 128), numbers(128, 256)
    config = module.TuningConfig(
        tile_m=128, tile_n=128 if not collective else 64, tile_k=64, max_concurrent_steps=2,
        collective=collective, epilogue_tile_n=32,
    )  # fmt: skip
    yield module.matmul_kernel(a, b, config), wide(a) @ wide(b), HALF


def blackwell_matmul():
    yield from _blackwell_matmul(False)


def blackwell_matmul_pairs():
    yield from _blackwell_matmul(True)


def blackwell_ragged_dot():
    module = ops("blackwell_ragged_dot_mgpu")
    matmul = ops("blackwell_matmul_mgpu")
    a, b, sizes = numbers(512, 128), numbers(3, 128, 256), np.array([200, 0, 312], np.int32)
    config = module.TuningConfig(
        tile_m=128, tile_n=64, tile_k=64, max_concurrent_steps=2, collective=True,
        grid_tile_width=1, grid_minor_dim=matmul.MatmulDimension.N, epilogue_tile_n=32,
    )  # fmt: skip
    found = module.ragged_dot_kernel(a, b, jnp.asarray(sizes), config)
    yield found, ragged_of(a, b, sizes), HALF


def _tokamax_attention(causal=False, backward=False):
    heads = (2, 2) if backward else (2, 1)
    q, given = (0.3 * numbers(1, 256, heads[0], 64, dtype=jnp.bfloat16) for _ in range(2))
    k, v = (0.3 * numbers(1, 256, heads[1], 64, dtype=jnp.bfloat16) for _ in range(2))

    def run(q, k, v):
        attention = importlib.import_module("tokamax").dot_product_attention
        return attention(q, k, v, is_causal=causal, implementation="mosaic")

    if not backward:
        yield run(q, k, v), attention_of(q, k, v, 0.125, causal), 8e-3
        return
    found, back = jax.vjp(run, q, k, v)
    gradients = attention_gradients(q, k, v, given, 0.125)
    for a, b in zip(back(given.astype(found.dtype)), gradients, strict=True):
        yield a, b, 2e-2


def tokamax_attention():
    yield from _tokamax_attention()


def tokamax_attention_causal():
    yield from _tokamax_attention(causal=True)


def tokamax_attention_backward():
    yield from _tokamax_attention(backward=True)


def tokamax_ragged_dot():
    a, b = numbers(256, 128, dtype=jnp.bfloat16), numbers(3, 128, 256, dtype=jnp.bfloat16)
    sizes = np.array([100, 0, 156], np.int32)
    ragged_dot = importlib.import_module("tokamax").ragged_dot
    found = ragged_dot(a, b, jnp.asarray(sizes), implementation="mosaic")
    yield found, ragged_of(a, b, sizes), 8e-3


def tokamax_gated_linear_unit():
    x, weights = numbers(128, 128, dtype=jnp.bfloat16), numbers(128, 2, 128, dtype=jnp.bfloat16)
    unit = importlib.import_module("tokamax").gated_linear_unit
    found = unit(x, weights, activation=jax.nn.relu, implementation="mosaic")
    gate, up = (wide(x) @ wide(weights)[:, n] for n in range(2))
    yield found, np.maximum(gate, 0) * up, 8e-3


def main(arguments):
    for name in arguments:
        if name.startswith("--mended="):
            mend(*json.loads(name.partition("=")[2]))
            continue
        pairs = []
        for found, expected, most in globals()[name]():
            found = wide(found)
            assert found.shape == expected.shape, (name, found.shape, expected.shape)
            apart = np.linalg.norm(found - expected) / np.linalg.norm(expected)
            pairs.append([float(apart), most])
        print(json.dumps({"kernel": name, "pairs": pairs}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
