"""Hugging Face's models with random weights, with and without this project's products.

    python -m benchmarks.experts_models [--json FILE] [--model moe|fp8|oss|all] [--layers N]
        [--rounds N] [--compiled]

"moe" is a Qwen3-MoE (hidden 2048, 128 experts of 768, 8 of them for a token), whose experts
transformers multiplies by ``grouped_mm``; "fp8" a dense Qwen3 (hidden 4096, 12288) whose linear
layers are transformers' `FP8Linear`, with scales of 128x128, multiplied by
``torch.nn.functional.scaled_mm``; "oss" a GPT-OSS of the 20B's sizes (2880, 32 experts of 2880,
4 for a token), whose experts have biases and a clamped swiglu. Sides: "torch"; "drop_in", the same
within `drop_in`; "gated", with the first products of the experts and their swiglu in one launch,
too; "rows", with the tokens read and stored where they are (`benchmarks.row_order`).

A prompt of 4 x 1024 tokens, and steps of decoding for 16 sequences, each as a CUDA graph, replayed
in turn; "eager" is a step without a graph, in turn, too. "same" is the part of 16 x 32 tokens,
decoded greedily, that are the same as torch's before the first difference in a sequence; "logits"
how far the prompt's logits are from torch's, over the norm of these.

All that is decoded after a near tie may differ, so that "same" says little of how good tokens are.
"agree" does: the part of the prompt's places whose most probable token is that of a reference, the
same model in fp32 by torch; torch's own part stands beside it. "clear" is the same of those places
where the reference's best token leads by more than `CLEAR`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

import triton_ext
from benchmarks import harness
from benchmarks.experts import error_of
from benchmarks.harness import Row, Table
from benchmarks.row_order import in_three_launches, routed, with_copies
from triton_ext.ops.replay import graph_of, replayed_seconds, warm_up

PROMPT = (4, 1024)
CLEAR = 0.1
"""By how much a token leads that rounding should not change, in deviations of a place's logits."""
SEQUENCES, STEPS, ROOM = 16, 32, 128
"""How many sequences are decoded, for how many tokens, and the tokens that the cache holds."""


class Side(NamedTuple):
    """A way to multiply.

    Attributes:
        experts: transformers' name of the way of the experts; None of a model without such.
        drop_in: whether PyTorch's products come here.
    """

    experts: str | None
    drop_in: bool

    def active(self) -> contextlib.AbstractContextManager[Any]:
        """In which it is multiplied so."""
        return triton_ext.drop_in() if self.drop_in else contextlib.nullcontext()


SIDES = {
    "moe": {
        "torch": Side("grouped_mm", False), "drop_in": Side("grouped_mm", True),
        "gated": Side("triton_ext", True), "rows": Side("triton_ext_rows", True),
    },
    "fp8": {"torch": Side(None, False), "drop_in": Side(None, True)},
    "oss": {
        "torch": Side("grouped_mm", False), "drop_in": Side("grouped_mm", True),
        "rows": Side("triton_ext_oss", True),
    },
}  # fmt: skip


def experts(self: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """transformers' experts, with swiglu in the first product.

    Args:
        self: the module, with ``gate_up_proj`` (experts, 2 F, K) and ``down_proj`` (experts, K, F).
        x: (tokens, K).
        chosen, weights: (tokens, experts of each).
    """
    return with_copies(routed(x, self.gate_up_proj.mT, self.down_proj.mT, chosen, weights))


def experts_in_order(self: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """The same without a permuted copy."""
    gate_up, down = self.gate_up_proj.mT, self.down_proj.mT
    return in_three_launches(routed(x, gate_up, down, chosen, weights))


def experts_with_biases(self: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """GPT-OSS's experts: gate and up in turn, clamped, with biases (``GptOssExperts``)."""
    offs, rows, order, factors = triton_ext.route(chosen, self.num_experts, weights)
    inner = triton_ext.grouped_mm(
        x, self.gate_up_proj, offs, rows=rows, bias=self.gate_up_proj_bias,
        activation="swigluoai_interleaved",
    )  # fmt: skip
    each = triton_ext.grouped_mm(
        inner, self.down_proj, offs, out_rows=order, factors=factors, bias=self.down_proj_bias
    )
    return each.view(*chosen.shape, -1).sum(1)


def scaled_linear(
    x: Tensor, weight: Tensor, scales: Tensor, block_size: Any = None, bias: Tensor | None = None,
    *others: Any, **more: Any,
) -> Tensor:  # fmt: skip
    """transformers' ``fp8_linear``, by PyTorch's product with scales by blocks."""
    rows = x.flatten(0, -2)
    a, scale_a = triton_ext.quantize_1x128(rows)
    kinds = torch.nn.functional.ScalingType
    made = torch.nn.functional.scaled_mm(
        a, weight.t(), scale_a, kinds.BlockWise1x128, scales.t(), kinds.BlockWise128x128,
        output_dtype=x.dtype,
    )  # fmt: skip
    made = made if bias is None else made + bias
    return made.view(*x.shape[:-1], -1)


def moe(layers: int, size: int = 2048) -> Any:
    """A Qwen3-MoE."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register("triton_ext", experts)
    ALL_EXPERTS_FUNCTIONS.register("triton_ext_rows", experts_in_order)
    config = Qwen3MoeConfig(
        vocab_size=16 * size, hidden_size=size, intermediate_size=3 * size,
        moe_intermediate_size=3 * size // 8, num_hidden_layers=layers,
        num_attention_heads=size // 64, num_key_value_heads=size // 512, head_dim=128,
        num_experts=128, num_experts_per_tok=8, max_position_embeddings=4096,
    )  # fmt: skip
    return Qwen3MoeForCausalLM(config).to(torch.bfloat16).eval()


def fp8(layers: int, size: int = 4096) -> Any:
    """A dense Qwen3 in fp8."""
    from transformers import FineGrainedFP8Config, Qwen3Config, Qwen3ForCausalLM
    from transformers.integrations import finegrained_fp8

    finegrained_fp8.fp8_linear = scaled_linear
    config = Qwen3Config(
        vocab_size=8 * size, hidden_size=size, intermediate_size=3 * size,
        num_hidden_layers=layers, num_attention_heads=size // 128,
        num_key_value_heads=size // 512, head_dim=128, max_position_embeddings=4096,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).to(torch.bfloat16).eval()
    wide = {name: each.weight for name, each in model.named_modules() if hasattr(each, "weight")}
    kept = ["lm_head", "model.embed_tokens"]
    finegrained_fp8.replace_with_fp8_linear(model, kept, FineGrainedFP8Config())
    for name, module in model.named_modules():
        if isinstance(module, finegrained_fp8.FP8Linear):
            weight, scales = triton_ext.quantize_128x128(wide[name].detach())
            module.weight = torch.nn.Parameter(weight, requires_grad=False)
            module.weight_scale_inv = torch.nn.Parameter(scales, requires_grad=False)
    return model


def mask_of_eager(*sizes: Any, dtype: torch.dtype = torch.float32, **options: Any) -> Tensor | None:
    """transformers' mask of attention without kernels, made on the device alone: theirs has a zero
    of the host, which no graph captures.
    """
    from transformers.masking_utils import sdpa_mask

    kept = sdpa_mask(*sizes, **{**options, "allow_is_causal_skip": False})
    if kept is None:
        return None
    least = torch.finfo(dtype).min
    return torch.zeros(kept.shape, dtype=dtype, device=kept.device).masked_fill_(~kept, least)


def oss(layers: int, size: int = 2880) -> Any:
    """A GPT-OSS, without sliding windows."""
    from transformers import GptOssConfig, GptOssForCausalLM
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register("triton_ext_oss", experts_with_biases)
    ALL_MASK_ATTENTION_FUNCTIONS.register("eager", mask_of_eager)
    config = GptOssConfig(
        vocab_size=16 * size, hidden_size=size, intermediate_size=size, num_hidden_layers=layers,
        num_local_experts=32, num_experts_per_tok=4, num_attention_heads=size // 45,
        num_key_value_heads=8, head_dim=64, layer_types=["full_attention"] * layers,
    )  # fmt: skip
    return GptOssForCausalLM(config).to(torch.bfloat16).eval()


MODELS: dict[str, Callable[[int], Any]] = {"moe": moe, "fp8": fp8, "oss": oss}


class Decoding:
    """Steps of decoding, one token for each sequence, with memory of their own.

    Args:
        step: the model's forward, which may be compiled.
    """

    def __init__(self, model: Any, step: Callable[..., Any], sequences: int = SEQUENCES) -> None:
        from transformers import StaticCache

        device = model.device
        self.cache = StaticCache(config=model.config, max_cache_len=ROOM)
        self.tokens = torch.zeros(sequences, 1, dtype=torch.long, device=device)
        self.place = torch.zeros(1, dtype=torch.long, device=device)
        self._step = step
        self(0)

    def __call__(self, _: int) -> Tensor:
        """The logits after a token at `place`, which graphs read anew."""
        for layer in self.cache.layers:
            layer.cumulative_length.copy_(self.place[0])
        made = self._step(
            input_ids=self.tokens, past_key_values=self.cache, use_cache=True,
            position_ids=self.place[None],
        )  # fmt: skip
        logits: Tensor = made.logits[:, -1]
        return logits

    def greedy(self, begin: Tensor, steps: int, step: Callable[[], Tensor]) -> Tensor:
        """The tokens (sequences, steps) that follow the first one, each the most probable."""
        self.cache.reset()
        self.tokens.copy_(begin)
        found = []
        for i in range(steps):
            self.place.fill_(i)
            self.tokens.copy_(step().argmax(-1, keepdim=True))
            found.append(self.tokens.clone())
        return torch.cat(found, 1)


def same(found: Tensor, expected: Tensor) -> float:
    """The part of the tokens before the first that differs in its sequence."""
    return float((found == expected).long().cumprod(1).double().mean())


def agreement(logits: Tensor, reference: Tensor) -> tuple[float, float]:
    """The part of a text's places (..., tokens) with the reference's most probable token: of all
    places, and of those where it leads by more than `CLEAR` times what logits there deviate by.
    """
    same_token = logits.argmax(-1) == reference.argmax(-1)
    first, second = reference.topk(2).values.unbind(-1)
    clear = first - second > CLEAR * reference.std(-1)
    return float(same_token.double().mean()), float(same_token[clear].double().mean())


def in_fp32(model: Any) -> Any:
    """A copy of a model in fp32, its layers in fp8 with the values that their weights have."""
    found = copy.deepcopy(model)
    for name, module in list(found.named_modules()):
        scales = getattr(module, "weight_scale_inv", None)
        if scales is not None:
            rows, columns = module.weight.shape
            linear = torch.nn.Linear(columns, rows, module.bias is not None, device=scales.device)
            each = scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
            linear.weight.data = module.weight.float() * each
            if module.bias is not None:
                linear.bias.data = module.bias.data
            found.set_submodule(name, linear)
    return found.float()


def _reference(model: Any, prompt: Tensor) -> Tensor:
    """The logits after a prompt by torch's own products, in fp32."""
    exact = in_fp32(model)
    if hasattr(exact.config, "num_experts_per_tok"):
        exact.set_experts_implementation("eager")
    logits: Tensor = exact(input_ids=prompt, use_cache=False).logits
    return logits


def _seconds(launch: Callable[[], Any], rounds: int) -> float:
    """The median time of a call, with the host's."""
    found: list[float] = []
    for _ in range(rounds + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        launch()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1e-3)
    return statistics.median(found[2:])


def _model_rows(name: str, layers: int, rounds: int, compiled: bool) -> Iterator[Row]:
    """The rows of a model."""
    torch.manual_seed(0)
    torch.set_default_device("cuda")
    model = MODELS[name](layers)
    torch.set_default_device(None)  # a mode that every call of torch would pass
    prompt = torch.randint(0, model.config.vocab_size, PROMPT, device="cuda")
    begin = torch.randint(0, model.config.vocab_size, (SEQUENCES, 1), device="cuda")
    graphs: dict[str, dict[str, torch.cuda.CUDAGraph]] = {"prompt": {}, "step": {}}
    logits, tokens = {}, {}
    decodings: dict[str, Decoding] = {}
    for title, side in SIDES[name].items():
        if side.experts is not None:
            model.set_experts_implementation(side.experts)

        made: list[Tensor] = []

        def whole(_: int, made: list[Tensor] = made) -> None:
            made[:] = [model(input_ids=prompt, use_cache=False).logits]

        with side.active():
            whole(0)
            logits[title] = made[0].clone()
            forward = torch.compile(model.forward, dynamic=False) if compiled else model.forward
            decoding = decodings[title] = Decoding(model, forward)
            graphs["prompt"][title] = graph_of(whole, 1)
            held: list[Tensor] = []

            def one(i: int, decoding: Decoding = decoding, held: list[Tensor] = held) -> None:
                held.append(decoding(i))

            graph = graphs["step"][title] = graph_of(one, 1)

        def step(graph: Any = graph, held: Any = held) -> Tensor:
            graph.replay()
            last: Tensor = held[-1]
            return last

        tokens[title] = decoding.greedy(begin, STEPS, step)
    times = {}
    for kind, each in graphs.items():
        warm_up(each)
        found = replayed_seconds(each, rounds)
        times[kind] = {title: statistics.median(seconds) for title, seconds in found.items()}
    turns: dict[str, list[float]] = {title: [] for title in SIDES[name]}
    for _ in range(rounds):
        for title, side in SIDES[name].items():
            if side.experts is not None:
                model.set_experts_implementation(side.experts)
            with side.active():
                turns[title].append(_seconds(functools.partial(decodings[title], 0), 3))
    times["eager"] = {title: statistics.median(seconds) for title, seconds in turns.items()}
    reference = _reference(model, prompt)
    for title in SIDES[name]:
        row: Row = {
            "model": name, "side": title, "layers": layers, "compiled": compiled,
            "same": same(tokens[title], tokens["torch"]),
            "logits": error_of(logits[title], logits["torch"].double()),
            **dict(zip(("agree", "clear"), agreement(logits[title], reference), strict=True)),
        }  # fmt: skip
        for kind, each_side in times.items():
            row[kind] = each_side[title] * 1e3
            row[f"{kind} ratio"] = each_side["torch"] / each_side[title]
        yield row


@torch.no_grad()
def measured(rounds: int, model: str, layers: int, compiled: bool) -> Iterator[Row]:
    """The rows of the table."""
    for name in MODELS if model == "all" else (model,):
        yield from _model_rows(name, layers, rounds, compiled)
        torch.cuda.empty_cache()


TABLE = Table(
    ("model", "<7", "model"), ("side", "<9", "side"), ("prompt ms", ">10.3f", "prompt"),
    ("ratio", ">7.3f", "prompt ratio"), ("step ms", ">9.3f", "step"),
    ("ratio", ">7.3f", "step ratio"), ("eager ms", ">10.3f", "eager"),
    ("ratio", ">7.3f", "eager ratio"), ("same", ">7.3f", "same"), ("logits", ">9.1e", "logits"),
    ("agree", ">8.4f", "agree"), ("clear", ">8.4f", "clear"),
)  # fmt: skip


def main() -> None:
    """The command."""
    harness.main(
        "experts_models", __doc__, measured, TABLE, "ratios: torch's time over the side's",
        rounds=7, model="all", layers=4, compiled=False,
    )  # fmt: skip


if __name__ == "__main__":
    main()
