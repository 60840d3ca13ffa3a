"""Shortcuts of repeated products (`triton_ext.ops.shortcuts`) against the long way.

The long way is the same call with no shortcut kept: what it hands to Triton's C launcher, the kind
of its output, or its error must be the same whatever was called before, with which tensors, and in
which modes of torch.
"""

import contextlib
import re
import types

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import some
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import triton_ext
from triton_ext.ops import checks, launches, overrides, planning, plans, shortcuts, torch_products
from triton_ext.ops.device import Gpu


class Launcher:
    """A kernel's direct launch that notes what it is given."""

    def __init__(self, config, started):
        self.config, self.started = config, started

    def current_stream(self, index):
        return 77

    def tensor_map(self, operand, address, shape, strides):
        return operand, address, tuple(shape), tuple(strides)

    def __call__(self, grid, stream, arguments):
        self.started.append((self.config, (*grid, stream, arguments)))


@pytest.fixture(scope="module")
def started():
    """What was started on a GPU whose memory is the host's."""
    found = []
    gpu = Gpu(90, types.SimpleNamespace(multi_processor_count=132), -1)

    class Launch(launches.PreparedLaunch):
        def __init__(self, *args):
            super().__init__(*args)
            self.direct = Launcher(self.config, found)

    workspaces = {}

    def workspace(size, index, stream):
        key = size, index, stream, torch.cuda.is_current_stream_capturing()
        return workspaces.setdefault(key, torch.empty(1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "PreparedLaunch", Launch)
        patch.setattr(launches, "_workspace", workspace)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        patch.setattr(checks, "find_gpu", lambda device: gpu)
        patch.setattr(torch_products, "offers", lambda device: True)
        for module in (checks, torch_products):
            patch.setattr(module, "require_gpu", lambda device: gpu)
        patch.setattr(overrides, "active_emulator", lambda: gpu)
        patch.setattr(plans, "_current_gpu", lambda: -1)
        patch.setattr(plans, "_new_on_gpu", plans._new_on_host)
        plans.clear_cache()
        yield found
        plans.clear_cache()


class Subclass(torch.Tensor):
    """Whose operations are torch's."""


noticed = []
"""The functions that modes saw."""


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        noticed.append(str(function))
        return function(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        noticed.append(str(function))
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def captured():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        yield


@contextlib.contextmanager
def fixed():
    triton_ext.fixed_kernels()
    try:
        yield
    finally:
        triton_ext.fixed_kernels(False)


def plainly(call):
    return call()


def within(context):
    def run(call):
        with context():
            return call()

    return run


def transformed(call):
    """Within a vmap that the tensors have no part of."""
    made = []
    torch.func.vmap(lambda x: made.append(call()) or x)(torch.zeros(2))
    return made[0]


def traced(call):
    made = []
    with contextlib.suppress(Exception):
        torch.jit.trace(lambda x: made.append(call()) or x + 1, torch.zeros(2), check_trace=False)
    return made[0] if made else None


WAYS = {
    "plainly": plainly,
    "no_grad": within(torch.no_grad),
    "inference_mode": within(torch.inference_mode),
    "autocast": within(lambda: torch.autocast("cpu", torch.float16)),
    "function mode": within(FunctionMode),
    "dispatch mode": within(DispatchMode),
    "fake tensors": within(FakeTensorMode),
    "forward mode": within(forward_ad.dual_level),
    "transformed": transformed,
    "traced": traced,
    "deterministic": within(deterministic),
    "captured": within(captured),
    "fixed": within(fixed),
    "invariant": within(triton_ext.batch_invariant),
    "default device": within(lambda: torch.device("cpu")),
}


def _rows_apart(x):
    return torch.nn.functional.pad(x, (0, 8))[..., : x.shape[-1]] if x.dim() else x


def _unaligned(x):
    made = x.new_empty(x.numel() + 1)[1:].view(x.shape)
    return made.copy_(x)


LOOKS = {
    "as it is": lambda x: x,
    "by columns": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
    "rows apart": _rows_apart,
    "unaligned": _unaligned,
    "negated": lambda x: torch._neg_view(x),
    "a parameter": torch.nn.Parameter,
    "frozen": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "learned": lambda x: x.clone().requires_grad_(),
    "learned, unaligned": lambda x: _unaligned(x).requires_grad_(),
    "a subclass": lambda x: x.as_subclass(Subclass),
    "in fp16": lambda x: x.half(),
    "in fp32": lambda x: x.float(),
    "other values": torch.clone,
    "repeated": lambda x: x[:1].expand(x.shape) if x.dim() > 1 else x,
    "a half": lambda x: x[..., : x.shape[-1] // 2],
    "made in inference": lambda x: _in_inference(x),
}


def _in_inference(x):
    with torch.inference_mode():
        return x.clone()


def _tensor(shape, look, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(sum(shape))
    made = torch.randn(shape, generator=generator).to(dtype)
    try:
        return LOOKS[look](made)
    except (RuntimeError, IndexError):  # of fp8, or of no dimension
        return made


WRITTEN = ("torch.mm, out", "torch.addmm, out", "matmul, out")
SCALED = ("scaled_mm", "torch._scaled_mm")
GROUPED = (
    "grouped_mm", "scaled_grouped_mm", "torch._grouped_mm", "torch._scaled_grouped_mm",
)  # fmt: skip
OUTS = {
    "apart": lambda a, added: torch.empty(64, 64, dtype=torch.bfloat16),
    "the addend": lambda a, added: added,
    "in a": lambda a, added: a.detach().flatten()[: 64 * 64].view(64, 64),
    "half in a": lambda a, added: a.detach().flatten()[-64 * 64 :].view(64, 64),
    "beside the addend": lambda a, added: added.detach().flatten()[8:].view(-1, 64)[:64],
    "rows apart": lambda a, added: _rows_apart(torch.empty(64, 64, dtype=torch.bfloat16)),
    "by columns": lambda a, added: torch.empty(64, 64, dtype=torch.bfloat16).t(),
    "unaligned": lambda a, added: _unaligned(torch.zeros(64, 64, dtype=torch.bfloat16)),
    "in fp32": lambda a, added: torch.empty(64, 64),
}
"""Where a product is written, of an a and what is added."""

# What repeats most comes most often: a shortcut must be there to be wrong.
MOST = st.sampled_from(["as it is"] * 24 + sorted(LOOKS))
M = st.sampled_from([(64,)] * 5 + [(8, 8), (8, 8), (2, 32), (3,), ()])
CALLS = st.fixed_dictionaries(
    {
        "function": st.sampled_from(
            [
                *("matmul", "linear", "addmm", "bmm", "F.linear", "torch.addmm", "torch.mm"),
                *(*WRITTEN, *SCALED, *GROUPED),
            ]
        ),
        "rows": M,
        "looks": st.tuples(MOST, MOST, MOST),
        "addend": st.sampled_from(
            [None] * 4 + [(64,)] * 4 + [(64, 64), (64, 64), (1, 64), (64, 1), (), (32,), (8, 8, 64)]
        ),
        "options": st.sampled_from(
            [{}] * 18
            + [{"activation": "relu"}, {"activation": "swiglu"}, {"activation": ["relu"]},
               {"out_dtype": torch.float32}, {"batch_invariant": True}, {"beta": 0.5},
               {"alpha": 2}, {"beta": True}, {"fallback": "torch"}, {"use_fast_accum": False},
               {"use_fast_accum": 1}]
        ),
        "out": st.sampled_from(["apart"] * 8 + sorted(OUTS)),
        "routed": st.sampled_from([()] * 4 + [("rows",), ("out_rows", "factors"), ("counts",)]),
        "way": st.sampled_from(["plainly"] * 12 + sorted(WAYS)),
    }
)  # fmt: skip


def product(function, rows, looks, addend, options, out="apart", routed=()):
    """A call of a function with drawn tensors, which stay the same, and these."""
    if function in SCALED:
        call, known = scaled(function, looks, addend, options)
    elif function in GROUPED:
        call, known = grouped(function, looks, addend, options, routed)
    else:
        call, known = plain(function, rows, looks, addend, options, out)
    if "." in function:
        return lambda: within(triton_ext.drop_in)(call), known
    return call, known


def plain(function, rows, looks, addend, options, out):
    a = _tensor((*rows, 128), looks[0])
    weight = _tensor((64, 128), looks[1])
    if addend is None and "addmm" in function:
        addend = (64,)
    added = None if addend is None else _tensor(addend, looks[2])
    linear, factors = torch.nn.functional.linear, options.items()
    factors = {name: value for name, value in factors if name in ("beta", "alpha")}
    try:
        written = OUTS[out](a, added)
    except (RuntimeError, AttributeError):  # of too small an addend, or none
        written = None
    if written is None or written.shape != (
        *rows,
        64,
    ):  # torch would resize it, so that a second call is another one
        written = torch.empty(*rows, 64, dtype=torch.bfloat16)
    call = {
        "matmul": lambda: triton_ext.matmul(a, weight.mT, bias=added, **options),
        "linear": lambda: triton_ext.linear(a, weight, added, **options),
        "addmm": lambda: triton_ext.addmm(added, a, weight.mT, **options),
        "bmm": lambda: triton_ext.bmm(a, weight.mT.expand(len(a), 128, 64), **options),
        "F.linear": lambda: linear(a, weight, added),
        "torch.addmm": lambda: torch.addmm(added, a, weight.t(), **factors),
        "torch.mm": lambda: torch.mm(a, weight.t()),
        "torch.addmm, out": lambda: torch.addmm(added, a, weight.t(), **factors, out=written),
        "torch.mm, out": lambda: torch.mm(a, weight.t(), out=written),
        "matmul, out": lambda: triton_ext.matmul(a, weight.t(), out=written, **options),
    }[function]
    return call, (a, weight, added, written)


def scaled(function, looks, addend, options):
    """A product of fp8 whose scales are one tensor, or of rows and columns, or of blocks."""
    a, weight = (
        _tensor(shape, look, torch.float8_e4m3fn)
        for shape, look in (((64, 256), looks[0]), ((64, 256), looks[1]))
    )
    shapes = {None: [()], (64,): [(64, 1), (1, 64)], (64, 64): [(64, 2), (2, 1)]}
    kinds = shapes.get(addend, [(1,), (1,)])
    scales = [_tensor(shape, looks[2], torch.float32) for shape in kinds]
    bias = _tensor((64,), looks[2]) if addend in ((), (64, 1)) else None
    options = {"out_dtype": torch.bfloat16, **options}
    own = {each: options[each] for each in options.keys() & {"out_dtype", "use_fast_accum"}}
    call = {
        "scaled_mm": lambda: triton_ext.scaled_mm(
            a, weight.t(), scales[0], scales[-1], bias=bias, **options
        ),
        "torch._scaled_mm": lambda: torch._scaled_mm(
            a, weight.t(), scales[0], scales[-1], bias, **own
        ),
    }[function]
    return call, (a, weight, *scales, bias)


def grouped(function, looks, addend, options, routed):
    """Products of four groups; of fp8, with scales of rows and columns, or of blocks."""
    dtype = torch.float8_e4m3fn if "scaled" in function else torch.bfloat16
    a = _tensor((4, 16, 256) if "counts" in routed else (64, 256), looks[0], dtype)
    weight = _tensor((4, 64, 256), looks[1], dtype)
    offs = LOOKS["unaligned" if looks[2] == "unaligned" else "as it is"](
        torch.tensor([16, 16, 40, 64], dtype=torch.int32)
    )
    blocks = addend == (64, 64)
    shapes = ((64, 2), (4, 2, 1)) if blocks else ((64,), (4, 64))
    scales = [_tensor(shape, looks[2], torch.float32) for shape in shapes]
    order = torch.arange(64, dtype=torch.int32)
    others = {"rows": order, "out_rows": order.clone(), "factors": torch.ones(64), "counts": offs}
    others = {name: others[name] for name in routed}
    given = None if "counts" in routed else offs
    own = {each: options[each] for each in options.keys() & {"out_dtype"}}
    fast = {each: options[each] for each in options.keys() & {"out_dtype", "use_fast_accum"}}
    call = {
        "grouped_mm": lambda: triton_ext.grouped_mm(a, weight.mT, given, **others, **options),
        "scaled_grouped_mm": lambda: triton_ext.scaled_grouped_mm(
            a, weight.mT, *scales, given, **others, **options
        ),
        "torch._grouped_mm": lambda: torch._grouped_mm(a, weight.mT, offs, **own),
        "torch._scaled_grouped_mm": lambda: torch._scaled_grouped_mm(
            a, weight.mT, *scales, offs, **fast
        ),
    }[function]
    return call, (a, weight, *scales, *others.values(), offs)


def seen(started, way, call, known):
    """What a call starts, and the kind of its output, or its error.

    Args:
        known: the tensors that it is given; what is made for it lies elsewhere each time.
    """
    addresses = {tensor.data_ptr() for tensor in known if tensor is not None}
    del started[:], noticed[:]
    try:
        made = WAYS[way](call)
    except Exception as error:
        return len(started), type(error), re.sub("0x[0-9a-f]+", "", str(error))[:200]
    if made is None:
        return len(started), None
    kind = made.shape, made.stride(), made.dtype, made.requires_grad, type(made)
    noted = [
        (config, grid, [_without(each, addresses) for each in arguments])
        for config, (*grid, arguments) in started
    ]
    return noted, kind, [*noticed]


def _without(argument, addresses):
    """An argument of a launch, its address None if it is not one of these."""
    if isinstance(argument, tuple):
        operand, address, *others = argument
        return operand, address if address in addresses else None, *others
    is_address = isinstance(argument, int) and argument > 1 << 32
    return None if is_address and argument not in addresses else argument


def drawn_call(
    function="linear", look="as it is", way="plainly", out="apart", routed=(), **options
):
    """A value of `CALLS`."""
    looks = look, look, "as it is"
    addend = (64, 64) if "addmm, out" in function else None
    others = {"rows": (64,), "addend": addend, "options": options, "out": out, "routed": routed}
    return {"function": function, "looks": looks, "way": way, **others}


SEQUENCES = (
    (drawn_call(), drawn_call(activation="relu")),
    (drawn_call(look="learned", way="no_grad"), drawn_call(look="learned")),
    (drawn_call(), drawn_call(way="function mode"), drawn_call(way="dispatch mode")),
    (drawn_call(), drawn_call(way="fake tensors")),
    (drawn_call(look="learned"), drawn_call(look="learned", activation="relu"), drawn_call()),
    (drawn_call(look="learned"), drawn_call(look="learned, unaligned")),
    (drawn_call("matmul"), drawn_call("matmul", look="a subclass"), drawn_call("linear")),
    (drawn_call("torch.mm"), drawn_call("torch.mm", look="negated")),
    tuple(drawn_call("torch.addmm, out", out=out) for out in OUTS),
    tuple(drawn_call("torch.mm, out", out=out) for out in OUTS),
    (drawn_call("scaled_mm"), drawn_call("scaled_mm", look="unaligned")),
    (drawn_call("torch._grouped_mm"), drawn_call("torch._grouped_mm", look="unaligned")),
    (drawn_call("scaled_mm", use_fast_accum=True), drawn_call("scaled_mm", use_fast_accum=1)),
    (drawn_call("grouped_mm"), drawn_call("grouped_mm", activation="swiglu")),
    tuple(
        drawn_call("grouped_mm", routed=routed)
        for routed in ((), ("rows",), ("out_rows",), ("factors",), ("counts",))
    ),
    (drawn_call("torch._grouped_mm"), drawn_call("torch._grouped_mm", out_dtype=torch.float32)),
)
"""Whose second calls would be taken for the first if one condition were left out."""


@pytest.fixture
def hits(monkeypatch):
    """How often a shortcut was taken."""
    count = []
    for name in ("make", "make_with", "call"):
        make = getattr(shortcuts.Shortcut, name)
        monkeypatch.setattr(
            shortcuts.Shortcut, name, lambda *args, make=make: count.append(1) or make(*args)
        )
    return count


@pytest.mark.parametrize("function", [*WRITTEN[:2], *SCALED, *GROUPED])
@pytest.mark.parametrize("addend", [None, (64,)])
def test_a_repeated_call_takes_a_shortcut(function, addend, started, hits):
    call, _ = product(function, (64,), ["as it is"] * 3, addend, {})
    for _ in range(4):
        call()
    assert len(hits) >= 2
    del started[:]
    assert call() is not None
    assert len(started) == 1


@pytest.mark.parametrize("addend", [None, (64,)])
def test_gradients_of_a_repeated_call_take_shortcuts(addend, started, hits):
    call, (_, weight, *_) = product("linear", (64,), ["learned"] * 3, addend, {})
    grad = torch.ones(64, 64).bfloat16()
    for _ in range(4):
        del started[:], hits[:]
        call().backward(grad)
    assert len(started) == 3, "the product, and those of both gradients"
    assert len(hits) >= 3
    assert weight.grad.shape == weight.shape


def test_a_shortcut_starts_what_the_long_way_starts(started, hits):
    def check(drawn):
        made = []
        for each in drawn:
            given_to = {name: value for name, value in each.items() if name != "way"}
            made.append((each, *product(**given_to)))
        for _ in range(5):
            for each, call, known in made:
                short = seen(started, each["way"], call, known)
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(shortcuts, "_found", {})
                    patch.setattr(shortcuts, "_keep", lambda *args, **others: None)
                    assert seen(started, each["way"], call, known) == short, each

    for sequence in SEQUENCES:
        check(sequence)
    assert len(hits) > 20
    settings(max_examples=some(60), deadline=None)(
        given(st.lists(CALLS, min_size=1, max_size=5))(check)
    )()
    assert len(hits) > 60
