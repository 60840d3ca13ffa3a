"""`autotune`: measure the cost model's best configurations for a problem, and keep the fastest."""

from __future__ import annotations

import itertools
import math
import statistics
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from triton_ext.errors import LayoutError, UnsupportedDeviceError
from triton_ext.kernels.choice.choose import choose_config, predicted_seconds, ranked
from triton_ext.kernels.precompile import compile_together
from triton_ext.kernels.spec import KernelSpec
from triton_ext.ops import plans, tuned
from triton_ext.ops.call import Call
from triton_ext.ops.checks import check_operands, check_types
from triton_ext.ops.device import Gpu, require_gpu
from triton_ext.ops.operands import aligned_empty, memory_size, readable_copy
from triton_ext.ops.planning import Description, described, planned
from triton_ext.ops.replay import graph_of, launches_in_graph, replayed_seconds, warm_up
from triton_ext.ops.shapes import one_matrix
from triton_ext.ops.suspension import suspended
from triton_ext.ops.types import HALF_TYPES

CANDIDATES, FEW = 12, 4
"""How many configurations are measured unless asked for others, and where every product is: of 357
drawn ones of 16 bits on an H200, 0.8 % were below 0.97 of cuBLAS in the best of four, and in that
of twelve; 4.2 % in the first. (Of 1,114 on an H100, by an older model: 3.8, 3.0 and 7.2 %.)"""
ROUNDS = 8
MAX_INPUT_SETS = 16
_one_at_a_time = threading.Lock()


Timer = Callable[[Sequence[Callable[[int], None]], int, float], list[float]]
"""How many seconds each of some launches takes; called with these (they take the number of an input
set), with how many sets there are, and with about how long the fastest takes."""


@dataclass(frozen=True)
class Measured:
    """One configuration: predicted, and median measured, seconds of a launch."""

    config: KernelSpec
    predicted: float
    seconds: float


@dataclass(frozen=True)
class Tuning:
    """What `autotune` found.

    Attributes:
        problem: what it is for.
        measured: all that was measured, the fastest first.
        torch_seconds: of torch's own product; None if torch has none of these types, or if an
            operand had to be copied.
        file: where the fastest is kept; None if that was not asked for.
    """

    problem: tuned.Problem
    measured: tuple[Measured, ...]
    torch_seconds: float | None
    file: Path | None = None

    @property
    def config(self) -> KernelSpec:
        """The fastest configuration."""
        return self.measured[0].config

    @property
    def torch_is_faster(self) -> bool:
        """Whether torch's own product is."""
        return self.kept.torch_is_faster

    @property
    def kept(self) -> tuned.Tuned:
        """What the file says of it."""
        first = self.measured[0]
        return tuned.Tuned(first.config, first.seconds, self.torch_seconds)


def autotune(
    a: Tensor,
    b: Tensor,
    *,
    out_dtype: torch.dtype | None = None,
    candidates: int = CANDIDATES,
    store: bool = True,
) -> Tuning:
    """Measure configurations for ``triton_ext.matmul(a, b)`` on this GPU, and keep the fastest.

    The cost model's best ones, and torch's own product of fp16 or bf16, are timed in turn, over
    copies of a and b that do not fit the L2 cache. (Random numbers are the ones to take: zeros are
    faster.) From then on `matmul` and its relatives use the fastest for products of this type, size
    and major-ness, whatever follows the product; within ``drop_in()`` those that torch makes faster
    are left to it. So do later processes, from ``~/.cache/triton_ext/tuned.json``
    (TRITON_EXT_CACHE_DIR for another folder), until this project has another version. It takes
    seconds: each configuration is compiled, if it was not before. `measured_kernels` does so with
    every new product.

    Args:
        a: (M, K) or (batch, M, K), on a Hopper or Blackwell GPU.
        b: (K, N) or (batch, K, N).
        out_dtype: as for `matmul`.
        candidates: how many configurations.
        store: write the file.

    Raises:
        UnsupportedDeviceError: the tensors are not on such a GPU.
        LayoutError: shapes or types do not fit.
        OSError: the file cannot be written.
    """
    gpu = require_gpu(a.device)
    if gpu.index is None:
        raise UnsupportedDeviceError("autotune needs a GPU: there is no time on an emulated one")
    with gpu.current():
        return tune(gpu, Call(a, b, out_dtype=out_dtype), candidates, store, device_seconds)


def tune(gpu: Gpu, call: Call, candidates: int, store: bool, seconds: Timer) -> Tuning:
    """`autotune`, on a GPU that has been found, with a way to measure. `call`: of two matrices or
    two batches, alone."""
    if candidates < 1:
        raise LayoutError("candidates", candidates, "must be at least 1")
    check_operands(call.a, call.b, 3 if call.a.dim() == 3 else 2)
    check_types(call.a, call.b, call.out_dtype, gpu.arch)
    if not math.prod((*call.shape, call.a.shape[-1])):
        shapes = tuple(call.a.shape), tuple(call.b.shape)
        raise LayoutError("a.shape, b.shape", shapes, "must not be empty")
    call = one_matrix(call) or call  # as `matmul` would do
    return measure(described(gpu, call), call, candidates, store, seconds)


def measure(found: Description, call: Call, candidates: int, store: bool, seconds: Timer) -> Tuning:
    """What is found for a call that was described."""
    gpu, problem = found.gpu, found.problem
    copies = found.copies & {"a", "b"}
    a = readable_copy(call.a, 1, gpu.arch) if "a" in copies else call.a
    b = readable_copy(call.b, 0, gpu.arch) if "b" in copies else call.b
    c = aligned_empty(a, call.shape, call.dtype)
    sides = considered(problem, candidates, gpu.arch)
    if gpu.index is not None:
        compile_together([config for config, _ in sides])
    estimate = sides[0][1]
    sets = _input_sets(gpu, a, b, c)
    has_rival = a.dtype == c.dtype and a.dtype in HALF_TYPES and not copies
    rival = [_torchs_launch(sets)] if has_rival else []
    runs = [*(_launch_of(gpu, config, sets) for config, _ in sides), *rival]
    times = seconds(runs, len(sets), estimate)
    rows = [Measured(*each, time) for each, time in zip(sides, times, strict=False)]
    rows.sort(key=lambda row: row.seconds)
    torch_seconds = times[-1] if has_rival else None
    tuning = Tuning(problem, tuple(rows), torch_seconds)
    if not store:
        return tuning
    file = tuned.store(problem, tuning.kept)
    plans.clear_cache()
    return replace(tuning, file=file)


def measure_once(found: Description, call: Call) -> None:
    """`tune` a product that nothing is known of, if that can be done here and now; what stands in
    its way is a warning. `found`: the description of the call."""
    gpu, problem = found.gpu, found.problem
    if problem.gpu is None or tuned.lookup(problem, gpu.arch) is not None:
        return
    if gpu.index is not None and torch.cuda.is_current_stream_capturing():
        return
    a = call.a if call.b.dim() == 3 else call.a.flatten(0, -2)
    alone = Call(a.detach(), call.b.detach(), out_dtype=call.dtype)
    with _one_at_a_time:
        if tuned.lookup(problem, gpu.arch) is not None:  # by another thread, meanwhile
            return
        try:
            measure(found, alone, FEW, True, device_seconds)
        except (OSError, torch.OutOfMemoryError) as error:
            warnings.warn(f"not measured: {problem.key}: {error}", RuntimeWarning, stacklevel=2)


def considered(problem: tuned.Problem, count: int, arch: int) -> list[tuple[KernelSpec, float]]:
    """The one that is used untuned, and others that are predicted to be the fastest, and for how
    long they take.
    """
    product, size = problem.product, problem.size
    default = choose_config(arch, product, size)
    others = (config for config in ranked(arch, product, size) if config != default)
    return [
        (config.with_fields(batched=problem.batch > 1), predicted_seconds(config, size))
        for config in itertools.islice(itertools.chain([default], others), count)
    ]


def _input_sets(gpu: Gpu, a: Tensor, b: Tensor, c: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Copies of the operands, with outputs; twice what the L2 cache holds."""
    size = sum(x.numel() * x.element_size() for x in (a, b, c))
    cache = getattr(gpu.properties, "L2_cache_size", 50 << 20)
    count = max(2, min(MAX_INPUT_SETS, math.ceil(2 * cache / size)))
    return [
        (a, b, c) if i == 0 else (_copy(a), _copy(b), aligned_empty(c, c.shape))
        for i in range(count)
    ]


def _copy(tensor: Tensor) -> Tensor:
    """The same values, under the same strides, in other memory."""
    memory = tensor.new_empty(memory_size(tensor) // tensor.element_size())
    return memory.as_strided(tensor.shape, tensor.stride()).copy_(tensor)


def _launch_of(
    gpu: Gpu, config: KernelSpec, sets: Sequence[tuple[Tensor, Tensor, Tensor]]
) -> Callable[[int], None]:
    a, b, c = sets[0]
    prepared = planned(described(gpu, Call(a, b, out_dtype=c.dtype, out=c)), config).launch

    def launch(i: int) -> None:
        prepared(*sets[i % len(sets)])

    return launch


def _torchs_launch(sets: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Callable[[int], None]:
    multiply: Callable[..., Tensor] = torch.bmm if sets[0][0].dim() == 3 else torch.mm

    def launch(i: int) -> None:
        a, b, c = sets[i % len(sets)]
        with suspended():
            multiply(a, b, out=c)

    return launch


def device_seconds(
    runs: Sequence[Callable[[int], None]], sets: int, estimate: float
) -> list[float]:
    """What a stream of such launches sees: medians over rounds of CUDA graphs that are replayed in
    turn, on a GPU that is kept busy. No host time is in them.
    """
    count = launches_in_graph(estimate, sets)
    graphs = {str(i): graph_of(run, count) for i, run in enumerate(runs)}
    warm_up(graphs)
    times = replayed_seconds(graphs, ROUNDS)
    return [statistics.median(found) / count for found in times.values()]
