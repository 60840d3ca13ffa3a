"""A tiny Llama of `transformers`, trained on two ranks: our products do not change its losses.

python examples/parallel_training.py fsdp                       # any machine: the emulated Hopper
python examples/parallel_training.py tensor                     # the same, tensor parallel
python examples/parallel_training.py float8                     # FSDP2 of torchao's fp8 layers
torchrun --nproc-per-node 2 examples/parallel_training.py fsdp  # two GPUs
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import LlamaConfig, LlamaForCausalLM

import triton_ext

STEPS, SEQUENCES, TOKENS = 3, 2, 16
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


def parallel(model: LlamaForCausalLM, mesh: DeviceMesh, way: str) -> LlamaForCausalLM:
    """Parameters cut over the ranks: each as a whole (FSDP2), or by columns and rows."""
    columns, rows = ColwiseParallel(), RowwiseParallel()
    if way == "float8":  # but for the last layer, as is common
        from torchao.float8 import convert_to_float8_training

        convert_to_float8_training(model, module_filter_fn=lambda _, name: name != "lm_head")
    for layer in model.model.layers:
        if way != "tensor":
            fully_shard(layer, mesh=mesh)
        else:
            plan = {f"self_attn.{name}_proj": columns for name in "qkv"} | {
                "self_attn.o_proj": rows
            }
            plan |= {"mlp.gate_proj": columns, "mlp.up_proj": columns, "mlp.down_proj": rows}
            parallelize_module(layer, mesh, plan)
    if way != "tensor":
        return fully_shard(model, mesh=mesh)
    return parallelize_module(model, mesh, {"lm_head": ColwiseParallel(output_layouts=Replicate())})


def losses(mesh: DeviceMesh, way: str) -> list[float]:
    """The mean loss of the ranks in each step. Random weights and tokens, the same each time."""
    torch.manual_seed(0)
    device = mesh.device_type
    model = parallel(LlamaForCausalLM(LlamaConfig(**SIZES)).to(device, torch.bfloat16), mesh, way)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(0 if way == "tensor" else dist.get_rank())  # FSDP: data of each rank's own
    tokens = torch.randint(SIZES["vocab_size"], (SEQUENCES, TOKENS)).to(device)
    found = []
    for _ in range(STEPS):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        found.append(mean.item() / dist.get_world_size())
    return found


def train(way: str, device: str) -> None:
    """What one rank does."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    theirs = losses(mesh, way)
    context = triton_ext.emulate("sm_90") if device == "cpu" else contextlib.nullcontext()
    with context as gpu, triton_ext.drop_in():
        ours = losses(mesh, way)
    torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=1e-2)
    assert theirs[-1] < theirs[0]
    if dist.get_rank() == 0:
        print("torch     ", *(f"{loss:.4f}" for loss in theirs))
        print("triton_ext", *(f"{loss:.4f}" for loss in ours))
        if gpu is not None:
            print(gpu.launches, "products by the emulated GPU")
    dist.destroy_process_group()


def on_the_host(rank: int, store: str, way: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    train(way, "cpu")


if __name__ == "__main__":
    way = sys.argv[1]
    if "RANK" in os.environ:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        train(way, "cuda")
    else:
        with tempfile.TemporaryDirectory() as folder:
            arguments = f"{folder}/store", way
            torch.multiprocessing.start_processes(
                on_the_host, arguments, nprocs=2, start_method="fork"
            )
