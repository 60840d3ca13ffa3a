"""Products divided among the GPUs of this machine, a process each; where there is one GPU, two
processes share it, and take turns on it. Prints one JSON object: what each function here found on
rank 0. `TIMEOUT` as an argument: rank 1 leaves the others alone.

What is expected is computed apart, in fp64 or fp32, of what the ranks send each other through the
host.

What two processes of one GPU send each other is copied by SMs, not by a copy engine, and a kernel
that waits for it on every SM would wait for ever. So kernels have `FEWER_SMS` there; and none
begins while the one before it runs, or those that follow it would take the others.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.multiprocessing.spawn import spawn

import triton_ext
from triton_ext import distributed
from triton_ext.distributed import launches
from triton_ext.kernels import compiled_cache, launch
from triton_ext.ops import device as devices
from triton_ext.ops.epilogue import Epilogue, finished

FEWER_SMS = 60
OPTIONS = launch.compilation_options
TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn)


def _one_after_the_other(config):
    """Compilation options without programmatic dependent launch."""
    return {**OPTIONS(config), "launch_pdl": False}


def _error(found, expected):
    """The largest, relative to the largest element; on the worst rank."""
    found, expected = found.detach().float(), expected.detach().float()
    error = ((found - expected).abs().max() / expected.abs().max()).cpu()
    dist.all_reduce(error, dist.ReduceOp.MAX)
    return error.item()


def _everyones(own):
    """This tensor of every rank."""
    sent = own.detach().contiguous().view(torch.uint8).cpu()
    received = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
    dist.all_gather(received, sent)
    return [each.cuda().view(own.dtype).view(own.shape) for each in received]


def _divided(kind, a, b, rank):
    """What a rank gets of the product, of what each rank has of a and b."""
    if kind == "gather":
        return torch.cat(a) @ b[rank]
    return sum(x @ y for x, y in zip(a, b, strict=True)).chunk(len(a))[rank]


def _matrix(rows, columns, dtype, numbers, transposed):
    shape = (columns, rows) if transposed else (rows, columns)
    made = torch.randn(shape, generator=numbers, device="cuda").to(dtype)
    return made.t() if transposed else made


@contextmanager
def _carried_by_copy_engines(tiles):
    """Within it copy engines carry the tiles of all reduce-scatters, or of none."""
    launches._calls.clear()
    with mock.patch.object(launches, "STAGED", 0.0 if tiles else 1e9):
        yield
    launches._calls.clear()


def random_products():
    """The errors of random products, some of them several times without waiting."""
    draw, ranks, rows = random.Random(os.environ.get("FUZZ", "3")), dist.get_world_size(), []
    numbers = torch.Generator("cuda").manual_seed(dist.get_rank())
    for _ in range(int(os.environ.get("FUZZ", "12"))):
        kind, dtype = draw.choice(("gather", "scatter")), draw.choice(TYPES)
        m, n, k = (8 * round(2 ** draw.uniform(1, 9)) for _ in range(3))
        n, k = 2 * n, 2 * k
        m *= 1 if kind == "gather" else ranks
        halves = dtype.itemsize == 2
        a = _matrix(m, k, dtype, numbers, halves and kind == "scatter" and draw.random() < 0.3)
        b = _matrix(k, n, dtype, numbers, not halves or draw.random() < 0.5)
        options = {"activation": draw.choice((None, "relu", "gelu_tanh"))}
        if draw.random() < 0.5:
            out = torch.bfloat16 if dtype.itemsize == 1 else dtype
            options["bias"] = torch.ones(n, device="cuda", dtype=out)
        if dtype.itemsize == 1:
            options |= {"out_dtype": torch.bfloat16, "scale_b": torch.rand(1, n, device="cuda")}
            options["scale_a"] = torch.rand(m, 1, device="cuda", generator=numbers)
        call = {
            "gather": distributed.all_gather_matmul, "scatter": distributed.matmul_reduce_scatter
        }[kind]  # fmt: skip
        scales = [options.get(name, 1) for name in ("scale_a", "scale_b")]
        scaled = [each.float() * scale for each, scale in zip((a, b), scales, strict=True)]
        whole = [[each.double() for each in _everyones(own)] for own in scaled]
        bias = options.get("bias")
        after = Epilogue(None if bias is None else bias.float(), options["activation"])
        expected = finished(_divided(kind, *whole, dist.get_rank()).float(), after)
        del whole
        staged = draw.random() < 0.5
        with _carried_by_copy_engines(staged):
            found = [call(a, b, overlap=True, **options) for _ in range(draw.randint(1, 5))]
        row = f"{kind} {m}x{n}x{k} {dtype} {a.stride()} {b.stride()} {sorted(options)} {staged}"
        rows.append((row, max(_error(each, expected) for each in found)))
        print(*rows[-1], file=sys.stderr, flush=True)
    return rows


def graphs_and_streams():
    """Whether replays between other calls, and calls on other streams, make the same bits."""
    same = same_bits(distributed.all_gather_matmul)
    for staged in (False, True):
        with _carried_by_copy_engines(staged):
            same += same_bits(distributed.matmul_reduce_scatter)
    return same


def same_bits(call):
    """The same of one of the products, small and large."""
    same = []
    for m, n, k in ((1024, 768, 512), (4096, 4096, 2048)):
        a, b = (torch.randn(shape, device="cuda").bfloat16() for shape in ((m, k), (k, n)))
        expected = call(a, b, overlap=True)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            captured = [call(a, b, overlap=True) for _ in range(3)]
        for _ in range(5):
            for each in captured:
                each.zero_()
            graph.replay()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                found = call(a, b, overlap=True)
            torch.cuda.current_stream().wait_stream(stream)
            again = call(a, b, overlap=True)
            same += [torch.equal(each, expected) for each in (*captured, found, again)]
    return same


def gradients():
    """The errors of outputs and of gradients, eager and compiled."""
    errors, rank = [], dist.get_rank()
    for kind, call in (
        ("gather", distributed.all_gather_matmul), ("scatter", distributed.matmul_reduce_scatter)
    ):  # fmt: skip
        a, b, bias = (
            torch.randn(shape, device="cuda").bfloat16() for shape in ((512, 256), (256, 128), 128)
        )
        whole = [
            [each.float().requires_grad_() for each in _everyones(own)] for own in (a, b, bias)
        ]
        expected, loss = None, 0
        for other in range(dist.get_world_size()):  # each rank's output, of what all have
            made = _divided(kind, *whole[:2], other)
            made = torch.nn.functional.gelu(made + whole[2][other])
            expected = made if other == rank else expected
            loss = loss + made.square().sum()
        loss.backward()
        wanted = [expected, *(each[rank].grad for each in whole)]
        for compiled in (False, True):
            own = [each.clone().requires_grad_() for each in (a, b, bias)]
            chosen = torch.compile(call, backend="aot_eager") if compiled else call
            made = chosen(*own[:2], bias=own[2], activation="gelu", overlap=True)
            made.square().sum().backward()
            found = [made, *(each.grad for each in own)]
            errors += [_error(*each) for each in zip(found, wanted, strict=True)]
    return errors


def _part_error(found, whole):
    """The error of what each rank has of a distributed tensor."""
    (place,), local = found.placements, found.to_local().detach()
    if place == Partial():
        return _error(sum(each.double() for each in _everyones(local)), whole)
    if place == Replicate():
        return _error(local, whole)
    return _error(local, whole.chunk(dist.get_world_size(), place.dim)[dist.get_rank()])


def distributed_tensors():
    """For placements of a and b that need no communication: that of the product, and the errors of
    product and gradients.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cuda", (ranks,))
    torch.manual_seed(0)  # the same on all ranks
    shapes = (256, 512), (512, 384), (256, 384)
    a, b, seed = (torch.randn(shape, device="cuda").bfloat16() for shape in shapes)
    wholes = [each.double() for each in (a @ b, seed @ b.T, a.T @ seed)]
    rows = []

    def part(tensor, place):
        local = tensor if place == Replicate() else tensor.chunk(ranks, place.dim)[rank]
        return DTensor.from_local(local.contiguous(), mesh, [place], run_check=False)

    for places in ((Shard(0), Replicate()), (Replicate(), Shard(1)), (Shard(1), Shard(0))):
        own = [part(*each).requires_grad_() for each in zip((a, b), places, strict=True)]
        made = triton_ext.matmul(*own)
        (place,) = made.placements
        grads = torch.autograd.grad(
            made, own, part(seed, Replicate() if place == Partial() else place)
        )
        errors = [_part_error(*each) for each in zip((made, *grads), wholes, strict=True)]
        rows.append((*map(str, places), str(place), max(errors)))
    return rows


def on_one_rank(rank, ranks, meeting, answer):
    faulthandler.enable()
    apart = torch.cuda.device_count() >= ranks
    device = torch.device("cuda", rank if apart else 0)
    torch.cuda.set_device(device)
    if not apart:
        for module in (launch, compiled_cache):
            mock.patch.object(module, "compilation_options", _one_after_the_other).start()
        fewer = devices.Gpu(90, SimpleNamespace(multi_processor_count=FEWER_SMS), 0)
        mock.patch.object(devices, "_cuda_gpu", return_value=fewer).start()
    torch.set_float32_matmul_precision("high")
    dist.init_process_group(  # NCCL has no two ranks on one GPU
        "cpu:gloo,cuda:nccl" if apart else "gloo", init_method=f"file://{meeting}", rank=rank,
        world_size=ranks, device_id=device if apart else None,
    )  # fmt: skip
    if answer is None:
        a = torch.randn(512, 512, device="cuda").bfloat16()
        distributed.all_gather_matmul(a, a, overlap=True)
        torch.cuda.synchronize()
        if rank == 1:
            time.sleep(60)
            os._exit(0)
        distributed.all_gather_matmul(a, a, overlap=True)
        with suppress(RuntimeError):
            torch.cuda.synchronize()
        distributed.all_gather_matmul(a, a, overlap=True)
    found = {}
    for function in (random_products, graphs_and_streams, gradients, distributed_tensors):
        torch.manual_seed(rank)
        try:
            found[function.__name__] = function()
        except Exception:
            traceback.print_exc()  # at once: the others may wait for this rank
            found[function.__name__] = {"error": traceback.format_exc()}
            break
    if rank == 0 or any("error" in each for each in found.values() if isinstance(each, dict)):
        Path(answer).write_text(json.dumps(found))
    torch.cuda.synchronize()
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        answer = None if sys.argv[1:] == ["TIMEOUT"] else f"{folder}/answer"
        ranks = max(2, torch.cuda.device_count())
        spawn(on_one_rank, (ranks, f"{folder}/meeting", answer), nprocs=ranks)
        if answer is not None:
            print(Path(answer).read_text())


if __name__ == "__main__":
    main()
