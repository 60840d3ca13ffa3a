"""Products divided among the GPUs of this machine, a process each. Prints one JSON object: what
each function here found on rank 0. `TIMEOUT` as an argument: rank 1 leaves the others alone.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from triton_ext import distributed

TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn)


def _error(found, expected):
    """The largest, relative to the largest element; on the worst rank."""
    error = (found.float() - expected.float()).abs().max() / expected.float().abs().max()
    dist.all_reduce(error, dist.ReduceOp.MAX)
    return error.item()


def _matrix(rows, columns, dtype, numbers, transposed):
    shape = (columns, rows) if transposed else (rows, columns)
    made = torch.randn(shape, generator=numbers, device="cuda").to(dtype)
    return made.t() if transposed else made


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
        expected = call(a, b, overlap=False, **options)
        found = [call(a, b, overlap=True, **options) for _ in range(draw.randint(1, 5))]
        row = f"{kind} {m}x{n}x{k} {dtype} {a.stride()} {b.stride()} {sorted(options)}"
        rows.append((row, max(_error(each, expected) for each in found)))
        print(*rows[-1], file=sys.stderr, flush=True)
    return rows


def graphs_and_streams():
    """Whether replays between other calls, and calls on other streams, make the same bits."""
    a, b = (torch.randn(shape, device="cuda").bfloat16() for shape in ((1024, 512), (512, 768)))
    same = []
    for call in (distributed.all_gather_matmul, distributed.matmul_reduce_scatter):
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
    """The errors of gradients, eager and compiled, against parts one after the other."""
    errors = []
    for call in (distributed.all_gather_matmul, distributed.matmul_reduce_scatter):
        a, b, bias = (
            torch.randn(shape, device="cuda").bfloat16() for shape in ((512, 256), (256, 128), 128)
        )
        results = []
        for overlap, compiled in ((False, False), (True, False), (True, True)):
            own = [each.clone().requires_grad_() for each in (a, b, bias)]
            chosen = torch.compile(call, backend="aot_eager") if compiled else call
            made = chosen(*own[:2], bias=own[2], activation="gelu", overlap=overlap)
            made.square().sum().backward()
            results.append([made, *(each.grad for each in own)])
        for other in results[1:]:
            errors += [_error(*each) for each in zip(other, results[0], strict=True)]
    return errors


def on_one_rank(rank, ranks, meeting, answer):
    torch.cuda.set_device(rank)
    torch.set_float32_matmul_precision("high")
    dist.init_process_group(
        "nccl", init_method=f"file://{meeting}", rank=rank, world_size=ranks,
        device_id=torch.device("cuda", rank),
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
    for function in (random_products, graphs_and_streams, gradients):
        torch.manual_seed(rank)
        try:
            found[function.__name__] = function()
        except Exception:
            found[function.__name__] = {"error": traceback.format_exc()}
            break
    if rank == 0 or any("error" in each for each in found.values() if isinstance(each, dict)):
        Path(answer).write_text(json.dumps(found))
    torch.cuda.synchronize()
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        answer = None if sys.argv[1:] == ["TIMEOUT"] else f"{folder}/answer"
        ranks = torch.cuda.device_count()
        spawn(on_one_rank, (ranks, f"{folder}/meeting", answer), nprocs=ranks)
        if answer is not None:
            print(Path(answer).read_text())


if __name__ == "__main__":
    main()
