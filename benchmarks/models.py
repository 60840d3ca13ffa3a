"""Whole models of `transformers` with `drop_in()`, beside plain torch, on a Hopper GPU.

    python -m benchmarks.models [--json FILE] [--rounds N] [--only MODEL]

Full width, few layers, random weights in bf16, no language head. Both sides take turns, of several
calls each, in a drop-in or with none installed; each call is waited for, and the median of all but
the first of each turn counts: a model's time, with the host's where it shows. "fused" is the time
of plain torch over that after `triton_ext.fuse_activations`, within the drop-in, too.
The products of a row are those of a profiled eager call: their device time beside the row's time by
plain torch, and what each takes on either side.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch

import triton_ext
from benchmarks import harness
from benchmarks.harness import Row, Table
from triton_ext.ops.replay import graph_of

CONTEXT = 512
"""Tokens that are in the cache when a model decodes."""
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::_grouped_mm")
SHOWN = 8
"""Products of a row that are listed, by their time."""

TURN = 12
"""Calls of a turn."""

Step = Callable[[], Any]


class Family(NamedTuple):
    """A kind of model.

    Attributes:
        config: the name of its class of configurations.
        fields: what differs from that class's defaults.
        inputs: the tokens of a sequence, or the shape of one other input.
        argument: the name of that argument.
        graphs: whether a CUDA graph can be captured of it: some models make a mask on the host.
    """

    config: str
    fields: dict[str, Any]
    inputs: tuple[int, ...] = ()
    argument: str = "input_ids"
    graphs: bool = True


FAMILIES = {
    "Llama 8B": Family("LlamaConfig", {
        "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_key_value_heads": 8, "num_hidden_layers": 4}),
    "Qwen3 8B": Family("Qwen3Config", {
        "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 4}),
    "Gemma 3 4B": Family("Gemma3TextConfig", {
        "hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "num_hidden_layers": 6},
        graphs=False),
    "GPT-OSS 20B": Family("GptOssConfig", {"num_hidden_layers": 2}, graphs=False),
    "ViT-H": Family("ViTConfig", {
        "hidden_size": 1280, "intermediate_size": 5120, "num_attention_heads": 16,
        "num_hidden_layers": 6, "patch_size": 14}, (3, 224, 224), "pixel_values"),
    "Whisper large": Family("WhisperConfig", {
        "d_model": 1280, "encoder_layers": 6, "decoder_layers": 1, "encoder_ffn_dim": 5120,
        "decoder_ffn_dim": 5120, "encoder_attention_heads": 20, "decoder_attention_heads": 20,
        "num_mel_bins": 128}, (128, 3000), "input_features"),
}  # fmt: skip
COMPILED = ("Llama 8B", "ViT-H")
"""The families that are compiled, too: it takes a minute each."""
VOCABULARY = 32768


class Case(NamedTuple):
    """A step of a model.

    Attributes:
        step: what is done.
        mode: "eager", "compiled" or "graph".
        sides: run it once: "plain" by torch, "ours" within a drop-in, "fused" there after
            `triton_ext.fuse_activations`, of models that it changes.
        profiled: the step in eager mode, whose products are listed.
    """

    step: str
    mode: str
    sides: dict[str, Step]
    profiled: Step


def _model(family: Family) -> Any:
    import transformers

    fields = dict(family.fields)
    if family.argument == "input_ids":
        fields["vocab_size"] = VOCABULARY
        fields["pad_token_id"] = 0
    config = getattr(transformers, family.config)(**fields)
    with torch.device("cuda"):
        model = transformers.AutoModel.from_config(config, dtype=torch.bfloat16)
    return model.encoder if family.argument == "input_features" else model


def _inputs(family: Family, batch: int, tokens: int) -> dict[str, torch.Tensor]:
    if family.argument == "input_ids":
        return {"input_ids": torch.randint(1, VOCABULARY, (batch, tokens), device="cuda")}
    given = torch.randn(batch, *family.inputs, device="cuda", dtype=torch.bfloat16)
    return {family.argument: given}


def _dropped_in(step: Step) -> Any:
    with triton_ext.drop_in():
        return step()


@torch.no_grad()
def _forward(model: Any, inputs: dict[str, Any]) -> Any:
    return model(**inputs)


def _trained(model: Any, inputs: dict[str, torch.Tensor]) -> None:
    model.zero_grad()
    model(**inputs).last_hidden_state.square().mean().backward()


def _graphed(steps: dict[str, Step]) -> dict[str, Step]:
    """The graph of each side's step."""

    def graphed(name: str, step: Step) -> Step:
        return graph_of(lambda _: step() if name == "plain" else _dropped_in(step), 1).replay

    return {name: graphed(name, step) for name, step in steps.items()}


def _decoding(model: Any, batch: int) -> Step:
    """A token for each sequence of a batch; the place in the cache is the same each time."""
    from transformers import StaticCache

    cache = StaticCache(model.config, max_cache_len=2 * CONTEXT)
    tokens = torch.randint(1, VOCABULARY, (batch, CONTEXT), device="cuda")
    _forward(model, {"input_ids": tokens, "past_key_values": cache})
    return partial(_forward, model, {"input_ids": tokens[:, :1], "past_key_values": cache})


def _forwards(models: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Step]:
    """The step of each side's model."""
    return {side: partial(_forward, model, inputs) for side, model in models.items()}


def cases(name: str) -> Iterator[Case]:
    """The steps of a family."""
    family = FAMILIES[name]
    torch.manual_seed(0)
    model = _model(family)
    is_text = family.argument == "input_ids"
    forward = "prefill" if is_text else "forward"
    sizes = [(1, 128), (1, 2048), (4, 1024)] if is_text else [(1, 0), (8, 0)]
    model.eval()
    models = {"plain": model, "ours": model}
    fused = copy.deepcopy(model)
    if triton_ext.fuse_activations(fused):
        models["fused"] = fused
    for batch, tokens in sizes:
        title = f"{forward} {batch}x{tokens}" if tokens else f"{forward} {batch}"
        inputs = _inputs(family, batch, tokens)
        steps = _forwards(models, inputs)
        yield Case(title, "eager", steps, steps["ours"])
        if name in COMPILED:
            made = {each: torch.compile(each) for each in models.values()}
            compiled = _forwards({side: made[each] for side, each in models.items()}, inputs)
            yield Case(title, "compiled", compiled, steps["ours"])
        if family.graphs:
            yield Case(title, "graph", _graphed(steps), steps["ours"])
    if is_text and family.graphs:
        for batch in (1, 16):
            steps = {side: _decoding(each, batch) for side, each in models.items()}
            yield Case(f"decode {batch}", "graph", _graphed(steps), steps["ours"])
    model.train()
    batch, tokens = sizes[-1]
    training = partial(_trained, model, _inputs(family, batch, tokens))
    title = f"train {batch}x{tokens}" if tokens else f"train {batch}"
    yield Case(title, "eager", {"plain": training, "ours": training}, training)


def _waited(step: Step) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def timed(case: Case, rounds: int) -> dict[str, float]:
    """The median seconds of each side."""
    found: dict[str, list[float]] = {name: [] for name in case.sides}
    for turn in range(-1, -(-rounds // (TURN - 1))):
        for name, step in [*case.sides.items()][:: -1 if turn % 2 else 1]:
            with nullcontext() if name == "plain" else triton_ext.drop_in():
                spent = [_waited(step) for _ in range(TURN)]
            if turn >= 0:
                found[name].extend(spent[1:])
    return {name: statistics.median(each) for name, each in found.items()}


def products(step: Step) -> dict[str, tuple[int, float]]:
    """How often each product of a step is made, and its device time, seconds."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        step()
        torch.cuda.synchronize()
    found: dict[str, tuple[int, float]] = {}
    for each in profile.key_averages(group_by_input_shape=True):
        if each.key in PRODUCTS:
            shapes = [shape for shape in each.input_shapes if len(shape) > 1]
            title = f"{each.key[6:]} " + " ".join("x".join(map(str, x)) for x in shapes)
            found[title] = each.count, each.device_time_total * 1e-6
    return found


def measured(rounds: int, only: str) -> Iterator[Row]:
    """The rows of the table."""
    for name in FAMILIES if only == "all" else [only]:
        for case in cases(name):
            seconds = timed(case, rounds)
            plain = seconds["plain"]
            theirs = products(case.profiled)
            mine = products(partial(_dropped_in, case.profiled))
            largest = sorted(theirs, key=lambda title: -theirs[title][1])[:SHOWN]
            spent = sum(seconds for _, seconds in theirs.values())
            yield {
                "model": name, "step": case.step, "mode": case.mode, **seconds,
                "ratio": plain / seconds["ours"],
                "fused_ratio": plain / seconds["fused"] if "fused" in seconds else None,
                "share": spent / plain,
                "gain": spent / max(1e-9, sum(mine[title][1] for title in theirs if title in mine)),
                "products": {
                    title: [*theirs[title], mine.get(title, (0, 0.0))[1]] for title in largest
                },
            }  # fmt: skip
        torch.cuda.empty_cache()


TABLE = Table(
    ("model", "<15", "model"), ("step", "<17", "step"), ("mode", "<10", "mode"),
    ("torch, ms", ">10.3f", lambda row: 1e3 * row["plain"]),
    ("ours, ms", ">10.3f", lambda row: 1e3 * row["ours"]), ("ratio", ">8.3f", "ratio"),
    ("fused", ">8", lambda row: format(row["fused_ratio"], ".3f") if row["fused_ratio"] else "-"),
    ("products' share", ">17.2f", "share"), ("their gain", ">12.3f", "gain"),
)  # fmt: skip


def main() -> None:
    """The command."""
    harness.main("models", __doc__, measured, TABLE, "", rounds=15, only="all")


if __name__ == "__main__":
    main()
