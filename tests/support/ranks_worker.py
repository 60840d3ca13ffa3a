"""Products on 2 and 4 ranks: a process that forks them, so that torch is imported and kernels are
compiled once; gloo, CPU tensors. Prints one JSON object: what each function here found on rank 0.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import tempfile
import traceback
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from unittest import mock

import torch
import torch.distributed as dist
from shallow_rings import two_stages
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F
from up_to_ptx import up_to_ptx

import triton_ext
from triton_ext import distributed
from triton_ext.ops import eager, functional, products
from triton_ext.ops.epilogue import NOTHING, Epilogue, finished


def difference(found, expected):
    """In the Frobenius norm, relative; of DTensors, as a whole."""
    found, expected = (
        (each.full_tensor() if isinstance(each, DTensor) else each).detach().double()
        for each in (found, expected)
    )
    assert found.shape == expected.shape
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


def numbers(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape).to(dtype)


# ------------------------------------------------------------------ one product, each placement


def placements_of_a_product():
    """All placements of two matrices: those of the product, what was communicated, the error."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    a, b, bias = numbers(32, 32), numbers(32, 16), numbers(16)
    replicated, rows = distribute_tensor(bias, mesh), []
    for activation in (None, "relu"):  # in this order: DTensor keeps what it found for the first
        expected = F.linear(a.float(), b.T.float(), bias.float())
        expected = expected if activation is None else expected.relu()
        for places in itertools.product((Shard(0), Shard(1), Replicate()), repeat=2):
            sharded = [distribute_tensor(x, mesh, [p]) for x, p in zip((a, b), places, strict=True)]
            with CommDebugMode() as seen:
                made = triton_ext.matmul(*sharded, bias=replicated, activation=activation)
            error = difference(made, expected)
            place = str(made.placements[0])
            rows.append((activation, *map(str, places), place, seen.get_total_counts(), error))
    return rows


def groups():
    """Products of groups by placements of a and b: that of the output, what was communicated, and
    the error.
    """
    mesh, rows = init_device_mesh("cpu", (dist.get_world_size(),)), []
    a, b, offs = numbers(40, 32), numbers(3, 32, 16), torch.tensor([10, 10, 40]).int()
    sums = torch.cat([a[:10].float() @ b[0].float(), a[10:].float() @ b[2].float()])
    gate, up = sums.chunk(2, -1)
    ends = distribute_tensor(offs, mesh)
    for activation in (None, "swiglu"):
        expected = sums if activation is None else F.silu(gate) * up
        for places in ((Replicate(), Shard(2)), (Shard(1), Shard(1)), (Shard(0), Replicate())):
            sharded = [distribute_tensor(x, mesh, [p]) for x, p in zip((a, b), places, strict=True)]
            with CommDebugMode() as seen:
                made = triton_ext.grouped_mm(*sharded, ends, activation=activation)
            error = difference(made, expected)
            place = str(made.placements[0])
            rows.append((activation, *map(str, places), place, seen.get_total_counts(), error))
    return rows


def groups_in_any_order():
    """The same with rows that are read and stored where indices say, and weighted."""
    mesh, found = init_device_mesh("cpu", (dist.get_world_size(),)), []
    a, b, offs = numbers(30, 32), numbers(3, 32, 16), torch.tensor([10, 10, 40]).int()
    rows, out_rows = torch.arange(40).int() * 7 % 30, torch.arange(40).int() * 3 % 40
    factors = torch.arange(40) / 8
    taken = a[rows.long()].float()
    sums = torch.cat([taken[:10] @ b[0].float(), taken[10:] @ b[2].float()]) * factors[:, None]
    expected = torch.empty_like(sums).index_copy(0, out_rows.long(), sums)
    order = {"rows": rows, "out_rows": out_rows, "factors": factors}
    order = {name: distribute_tensor(each, mesh) for name, each in order.items()}
    ends = distribute_tensor(offs, mesh)
    for places in ((Replicate(), Shard(2)), (Shard(1), Shard(1))):
        sharded = [distribute_tensor(x, mesh, [p]) for x, p in zip((a, b), places, strict=True)]
        with CommDebugMode() as seen:
            made = triton_ext.grouped_mm(*sharded, ends, **order)
        place = str(made.placements[0])
        found.append((place, seen.get_total_counts(), difference(made, expected)))
    return found


def scales_of_blocks():
    """mxfp8 on the emulated Blackwell, with rows cut into whole pieces of 128 scales, and not: the
    placement, what was communicated, and whether the product is that of one GPU, bit by bit; or
    the error, as the second is to be gathered, and gloo does not know the type.
    """
    mesh, rows = init_device_mesh("cpu", (2,)), []
    for m in (256, 160):
        a, b = (torch.randn(shape).to(torch.float8_e4m3fn) for shape in ((m, 32), (16, 32)))
        sizes = 512 * -(-m // 128), 512
        scales = [torch.randint(120, 132, (n,)).byte().view(torch.float8_e8m0fnu) for n in sizes]
        x, blocks = (
            DTensor.from_local(each.chunk(2)[dist.get_rank()], mesh, [Shard(0)])
            for each in (a, scales[0])
        )
        y, others = (DTensor.from_local(each, mesh, [Replicate()]) for each in (b, scales[1]))
        with triton_ext.emulate("sm_100"), CommDebugMode() as seen:
            try:
                made = triton_ext.scaled_mm(x, y.t(), blocks, others)
                same = torch.equal(
                    made.to_local(),
                    triton_ext.scaled_mm(a, b.t(), *scales).chunk(2)[dist.get_rank()],
                )
                rows.append((str(made.placements[0]), seen.get_total_counts(), same))
            except RuntimeError as error:
                rows.append(str(error).splitlines()[0])
    return rows


# ------------------------------------------------------- the rules, over a class of inputs


def by_torch(call):
    """What the kernels compute, by torch, so that many products are quick."""
    a, b, epilogue, *_ = call.upright
    if a.dtype == torch.int8:
        made = (a.double() @ b.double()).to(call.dtype)
        return finished(made, epilogue)
    made = finished((a.float() @ b.float()), _wide(epilogue))
    return made.to(call.dtype)


def _wide(epilogue):
    if epilogue is NOTHING:
        return epilogue
    return type(epilogue)(*(x.float() if isinstance(x, torch.Tensor) else x for x in epilogue))


@contextmanager
def quickly():
    """Products by torch in place of the emulated kernels."""
    with ExitStack() as patches:
        for module in (products, eager, functional):
            patches.enter_context(mock.patch.object(module, "product", by_torch))
        yield


def random_products():
    """Random operators, shapes, placements, epilogues, on 2 ranks and on a mesh of 2 x 2: the
    largest error, also of gradients; and which placements the outputs had.

    With FUZZ=1000, so many.
    """
    draw, size = random.Random(os.environ.get("FUZZ", "7")), dist.get_world_size()
    mesh = init_device_mesh("cpu", (2,) * (size // 2))
    worst, seen = 0.0, set()
    with quickly():
        for _ in range(int(os.environ.get("FUZZ", 12 // size))):
            error, placements = one_random_product(draw, mesh)
            worst = max(worst, error)
            seen |= placements
    return worst, sorted(seen)


def one_random_product(draw, mesh):
    def shard(x):
        dims = [d for d in range(x.dim()) if x.shape[d] >= mesh.size()]
        choices = [Replicate(), *map(Shard, dims)] + [Partial()] * x.is_floating_point()
        places = [draw.choice(choices) for _ in range(mesh.ndim)]
        local = distribute_tensor(x, mesh, [Replicate() if p == Partial() else p for p in places])
        local = local.to_local()
        for at, place in zip(mesh.get_coordinate(), places, strict=True):
            local = local * (at + 1) if place == Partial() else local
        return DTensor.from_local(local, mesh, places, shape=x.shape, stride=x.stride())

    m, n, k, batch = (draw.randint(4, 23) for _ in range(4))
    operator = draw.choice(["mm", "mm", "linear", "addmm", "bmm", "scaled_mm", "int8"])
    if operator == "linear":  # DTensor's own view needs even shards
        m, batch = 4 * m, 4 * batch
    half = {"mm": (m, k), "linear": (batch, m, k), "bmm": (batch, m, k)}.get(operator, (m, k))
    if operator in ("scaled_mm", "int8"):
        a, b = (torch.randint(-9, 9, s).to(torch.int8) for s in ((m, k), (k, n)))
    else:
        b_shape = {"linear": (n, k), "bmm": (batch, k, n)}.get(operator, (k, n))
        a, b = numbers(*half, dtype=torch.float16), numbers(*b_shape, dtype=torch.float16)
    others = []
    activation = draw.choice([None, "relu", "gelu"])
    if operator == "mm":
        others = [numbers(n).half(), numbers(*draw.choice([(m, n), (1, n), (m, 1), (n,)])).half()]
    elif operator == "linear":
        others = [numbers(n).half()]
    elif operator == "addmm":
        others = [numbers(*draw.choice([(m, n), (n,), (1, n), (m, 1)])).half()]
    elif operator == "scaled_mm":
        wide = draw.choice([False, True])
        others = [torch.rand(m, 1) if wide else torch.rand(1), torch.rand(1, n), numbers(n)]

    def call(a, b, *others):
        if operator == "mm":
            bias, residual = others
            return triton_ext.matmul(
                a, b, bias=bias, residual=residual, beta=0.5, activation=activation
            )
        if operator == "linear":
            return triton_ext.linear(a, b, *others, activation=activation)
        if operator == "addmm":
            return triton_ext.addmm(*others, a, b, beta=0.5, alpha=2)
        if operator == "scaled_mm":
            return triton_ext.scaled_mm(a, b, *others[:2], bias=others[2], out_dtype=torch.float16)
        return triton_ext.bmm(a, b) if operator == "bmm" else triton_ext.matmul(a, b)

    whole = [a, b, *others]
    parts = [shard(x) for x in whole]
    # A partial sum of rounded parts is what it is: the reference is of the sum.
    whole = [part.full_tensor() for part in parts]
    # A derivative of relu jumps where the last bit differs.
    derived = a.is_floating_point() and activation is None
    if derived:
        whole, parts = ([x.detach().requires_grad_() for x in xs] for xs in (whole, parts))
    expected, found = call(*whole), call(*parts)
    errors = [difference(found, expected)]
    if derived:
        grad = numbers(*expected.shape, dtype=expected.dtype)
        for one, other in zip(
            torch.autograd.grad(found, parts, distribute_tensor(grad, mesh)),
            torch.autograd.grad(expected, whole, grad),
            strict=True,
        ):
            errors.append(difference(one, other))
    kinds = {type(p).__name__ for p in found.placements}
    return max(errors), {f"{operator} {kind}" for kind in kinds}


# ------------------------------------------------------------------------------------ models


class Linear(nn.Linear):
    def forward(self, x):
        return triton_ext.linear(x, self.weight, self.bias)


class Block(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = Linear(width, 2 * width), Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def models():
    """Tensor, sequence and data parallelism, and both, of a model of `triton_ext.linear`, and
    compiled: how much output and gradients differ from those of one process. The first on the
    emulated GPU; the others, where a product sees plain or the same placed tensors, by torch.
    """
    torch.manual_seed(1)
    reference = Block().bfloat16()
    x = numbers(4, 8, 32)
    expected = reference(x)
    expected.float().square().mean().backward()
    size = dist.get_world_size()
    one = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
    two = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))
    colwise_rowwise = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    sequence = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }

    def tensor(model):
        return parallelize_module(model, one, colwise_rowwise)

    ways = {
        "tensor": tensor,
        "sequence": lambda model: parallelize_module(model, one, sequence),
        "compiled": lambda model: torch.compile(tensor(model), backend="aot_eager", fullgraph=True),
    }
    if size == 4:
        ways = {
            "hsdp": lambda model: fully_shard(model, mesh=two),
            "fsdp and tensor": lambda model: fully_shard(
                parallelize_module(model, two["tp"], colwise_rowwise), mesh=two["dp"]
            ),
        }
    found = {}
    for name, way in ways.items():
        model = Block().bfloat16()
        model.load_state_dict(reference.state_dict())
        model = way(model)
        with nullcontext() if name == "tensor" else quickly():
            y = model(distribute_tensor(x, one, [Shard(1)]) if name == "sequence" else x)
            y.float().square().mean().backward()
        gradients = {
            key.removeprefix("_orig_mod."): difference(
                parameter.grad, reference.get_parameter(key.removeprefix("_orig_mod.")).grad
            )
            for key, parameter in model.named_parameters()
        }
        found[name] = {"output": difference(y, expected), **gradients}
    return found


# ------------------------------------------------------- triton_ext.distributed

KINDS = ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce")


def divided_products():
    """Products of divided matrices, whose parts come one after the other: the errors of outputs and
    gradients of each kind, eager and compiled, and which errors bad input ends in.
    """
    rank, size, found = dist.get_rank(), dist.get_world_size(), {}
    a, b, bias = numbers(8 * size, 16 * size), numbers(16 * size, 24), numbers(24)
    seed = numbers(8 * size, 24)
    rows, columns = slice(8 * rank, 8 * rank + 8), slice(16 * rank, 16 * rank + 16)
    for kind, activation in itertools.product(KINDS, (None, "gelu", "gelu_tanh")):
        whole = [x.float().requires_grad_() for x in (a, b, bias)]
        expected = finished(whole[0] @ whole[1], Epilogue(whole[2], activation))
        expected.backward(seed.float())
        parts = (rows, ...) if kind == "all_gather_matmul" else (..., columns)
        of_b = ... if kind == "all_gather_matmul" else columns
        own_rows = rows if kind == "matmul_reduce_scatter" else slice(None)
        for compiled in (False, True):
            if compiled and activation != ("gelu_tanh" if kind == KINDS[1] else None):
                continue  # each kind once; both forms of the argument
            own = [x.clone().requires_grad_() for x in (a[parts], b[of_b], bias)]
            call = partial(getattr(distributed, kind), bias=own[2], activation=activation)
            with quickly():
                call = torch.compile(call, backend="aot_eager") if compiled else call
                made = call(*own[:2])
                made.backward(seed[own_rows])
            grads = [own[0].grad, own[1].grad]
            wanted = [whole[0].grad[parts], whole[1].grad[of_b]]
            if kind == "all_gather_matmul":  # the gradient of b is of all rows, that of a is summed
                wanted[0] = wanted[0] * size
            outputs = zip([made, *grads], [expected[own_rows], *wanted], strict=True)
            name = f"{kind} {activation} {compiled}"
            found[name] = [difference(*each) for each in outputs]
    eighths = [x.to(torch.float8_e4m3fn) for x in (a, b)]
    scales = torch.rand(8 * size, 1) + 0.5, torch.rand(1, 24) + 0.5
    expected = (eighths[0].float() * scales[0]) @ (eighths[1].float() * scales[1])
    with quickly():
        made = distributed.all_gather_matmul(
            eighths[0][rows], eighths[1], scale_a=scales[0][rows], scale_b=scales[1],
            out_dtype=torch.bfloat16,
        )  # fmt: skip
        summed = distributed.matmul_reduce_scatter(
            eighths[0][:, columns], eighths[1][columns], scale_a=scales[0], scale_b=scales[1],
            out_dtype=torch.bfloat16,
        )  # fmt: skip
        odd = distributed.matmul_all_reduce(a[: size + 1, columns], b[columns])
    found["scaled"] = [difference(made, expected), difference(summed, expected[rows])]
    found["odd rows"] = [difference(odd, a[: size + 1].float() @ b.float())]
    refused = []
    for call in (
        lambda: distributed.all_gather_matmul(a, a[:3]),
        lambda: distributed.matmul_reduce_scatter(a[: size + 1], b),
        lambda: distributed.all_gather_matmul(a, b, bias=bias[:3]),
        lambda: distributed.all_gather_matmul(a, b, scale_a=scales[1]),
        lambda: distributed.all_gather_matmul(a, b, activation="tanh"),
        lambda: distributed.matmul_reduce_scatter(*eighths, out_dtype=torch.float8_e5m2),
    ):
        try:
            call()
            refused.append(None)
        except triton_ext.LayoutError as error:
            refused.append(error.argument)
    return {"errors": found, "refused": refused}


FUNCTIONS = {
    2: (
        placements_of_a_product,
        groups,
        groups_in_any_order,
        scales_of_blocks,
        random_products,
        models,
    ),
    4: (random_products, models),
}
DIVIDED = {3: (divided_products,)}
"""What ``divided`` on the command line asks for."""


def on_one_rank(rank, size, store, functions, out):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    found = {}
    for function in functions:
        torch.manual_seed(0)
        try:
            found[function.__name__] = function()
        except Exception:
            found[function.__name__] = {"error": traceback.format_exc()}
            break  # the other ranks may wait in this one's collectives
    if rank == 0 or any("error" in each for each in found.values() if isinstance(each, dict)):
        out.write(json.dumps([f"{size}", found]) + "\n")
        out.flush()
    if all("error" not in each for each in found.values()):
        dist.destroy_process_group()


def compile_once():
    """What the ranks multiply apart in `placements_of_a_product`: their forks have the kernels."""
    for (m, n, k), activation in itertools.product(
        ((16, 16, 32), (32, 8, 32), (32, 16, 32), (32, 16, 16)), (None, "relu")
    ):
        for bias in (None, numbers(n)):
            triton_ext.matmul(numbers(m, k), numbers(k, n), bias=bias, activation=activation)


def traced(x):
    return F.gelu(x.sin()).sum()


def import_once():
    """What torch imports when it compiles for the first time, and what Triton reads before its
    first kernel: the forks have it.
    """
    torch.compile(traced, backend="aot_eager")(torch.ones(4, requires_grad=True)).backward()
    triton_ext.matmul(numbers(16, 16), numbers(16, 16))


def main(functions):
    with (
        tempfile.TemporaryDirectory() as folder,
        up_to_ptx(),
        triton_ext.emulate("sm_90"),
        two_stages(),
    ):
        import_once()
        if 2 in functions:
            compile_once()
        for size in functions:
            ranks = []
            for rank in range(size):
                child = os.fork()
                if not child:
                    on_one_rank(rank, size, f"{folder}/{size}", functions[size], sys.stdout)
                    os._exit(0)
                ranks.append(child)
            for child in ranks:
                os.waitpid(child, 0)


if __name__ == "__main__":
    main(DIVIDED if sys.argv[1:] == ["divided"] else FUNCTIONS)
