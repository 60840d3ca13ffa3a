"""`triton_ext.fuse_activations`, on the emulated Hopper."""

import copy
import functools
import pickle

import pytest
import torch
from torch import nn

import triton_ext
from triton_ext.ops import activated
from triton_ext.ops.activated import pair_of

ACTIVATIONS = {
    "silu": nn.SiLU(),
    "gelu": nn.GELU(),
    "tanh": functools.partial(nn.functional.gelu, approximate="tanh"),
    "tanh_module": nn.GELU(approximate="tanh"),
    "relu": torch.relu,
}


class Gated(nn.Module):
    """What most models of text have."""

    def __init__(self, activation="silu", bias=False):
        super().__init__()
        self.gate_proj = nn.Linear(32, 48, bias=bias)
        self.up_proj = nn.Linear(32, 48, bias=bias)
        self.down_proj = nn.Linear(48, 32, bias=bias)
        self.act_fn = ACTIVATIONS[activation]

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Plain(Gated):
    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)))


class Reversed(Gated):
    def forward(self, x):
        return self.down_proj(self.up_proj(x) * self.act_fn(self.gate_proj(x)))


class Halves(Gated):
    """Gate and up are one layer, as in Phi-3."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.gate_up_proj = nn.Linear(32, 96, bias=True)
        del self.gate_proj, self.up_proj

    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(up * self.act_fn(gate))


class Swapped(Halves):
    """The other half is activated: no gated product of ours."""

    def forward(self, x):
        up, gate = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(up * self.act_fn(gate))


class Dropping(Gated):
    """What a forward does depends on the mode."""

    def forward(self, x):
        dropped = nn.functional.dropout(self.act_fn(self.gate_proj(x)), 1.0, self.training)
        return self.down_proj(dropped)


class Shared(Gated):
    """The gate's sums are used once more, so that they must be made."""

    def forward(self, x):
        gate = self.gate_proj(x)
        return self.act_fn(gate) * self.up_proj(x) + gate


class QuickGelu(nn.Module):
    """Known by what it computes."""

    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class Attention(nn.Module):
    """What is called, not looked into."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(32))

    def forward(self, x, mask, factor=1.0, wide=False):
        x = x * self.scale * factor
        x = x if mask is None else x + mask
        return x.float() if wide else x, None


class Layer(Gated):
    """As Whisper's: a whole layer, that decides by its arguments and by types."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.attention, self.dropout = Attention(), 0.0

    def forward(self, x, mask, memory=None, scaled=False, **others):
        y, _ = self.attention(x, mask, **others)
        if memory is not None:
            y = y + memory
        y = y + self.down_proj(self.act_fn(self.gate_proj(y.to(self.up_proj.weight.dtype))))
        if y.dtype == torch.float32:
            y = -y
        return 2 * y if scaled else y


class Branching(Gated):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


ACTIVATIONS["quick"] = QuickGelu()


def model_of(kind, *arguments):
    torch.manual_seed(0)
    return nn.Sequential(kind(*arguments), nn.Identity()).bfloat16().eval()


@pytest.fixture
def launches(monkeypatch):
    """The activations that products were asked for."""
    found, linear = [], activated.linear

    def spy(*arguments, activation=None):
        found.append(activation)
        return linear(*arguments, activation=activation)

    monkeypatch.setattr(activated, "linear", spy)
    return found


@pytest.mark.parametrize(
    ("kind", "arguments", "expected"),
    [
        (Gated, ("silu",), "swiglu"),
        (Gated, ("gelu",), "geglu"),
        (Gated, ("tanh",), "geglu_tanh"),
        (Gated, ("tanh_module",), "geglu_tanh"),
        (Reversed, ("relu",), "reglu"),
        (Plain, ("gelu", True), "gelu"),
        (Plain, ("quick",), "quick_gelu"),
        (Gated, ("silu", True), "silu"),  # gated products of two biases are two
        (Halves, ("gelu",), "geglu"),
        (Swapped, ("silu",), None),
        (Shared, ("silu",), None),
        (Branching, ("silu",), None),
    ],
)
def test_what_is_fused(launches, kind, arguments, expected):
    model, x = model_of(kind, *arguments), torch.randn(2, 24, 32).bfloat16()
    keys, exact = [*model.state_dict()], copy.deepcopy(model).double()
    found = triton_ext.fuse_activations(model)
    assert found == ([] if expected is None else ["0"])
    assert [*model.state_dict()] == keys
    with torch.no_grad(), triton_ext.emulate("sm_90"):
        made = model(x)
    assert launches == ([] if expected is None else [expected])
    with torch.no_grad():
        assert (made.double() - exact(x.double())).abs().max() < 2e-2


@pytest.mark.parametrize("mode", [False, True])
def test_the_mode_is_that_of_the_call(launches, mode):
    """Whatever it was when the model was changed."""
    model, x = model_of(Dropping), torch.randn(24, 32).bfloat16()
    with torch.no_grad():
        expected = model(x)
        triton_ext.fuse_activations(model.train(mode))
        assert all(each.training is mode for each in model.modules())
        with triton_ext.emulate("sm_90"):
            assert (model.eval()(x) - expected).abs().max() < 2e-2
            assert launches == ["silu"]
            assert torch.equal(model.train()(x), torch.zeros_like(expected))
    assert launches == ["silu"]


def test_ways_of_calling_a_module(launches):
    """Each has its own trace; one whose types are others than the layers' is left as it is."""
    torch.manual_seed(0)
    layer, x = Layer("silu").bfloat16().eval(), torch.randn(2, 24, 32).bfloat16()
    ways = [
        ((x, None), {}),
        ((x, x), {}),
        ((x, None), {"memory": x}),
        ((x,), {"mask": None, "memory": None, "scaled": True, "factor": 0.5}),
        ((x, None, x, True), {"factor": 2.0}),
    ]
    with torch.no_grad(), triton_ext.emulate("sm_90"):
        expected = [layer(*arguments, **others) for arguments, others in ways]
        wide = layer(x, None, wide=True)
        assert triton_ext.fuse_activations(layer) == [""]
        for (arguments, others), exact in zip(ways, expected, strict=True):
            for _ in range(2):
                made = layer(*arguments, **others)
                assert (made - exact).abs().max() < 0.1
        assert launches == ["silu"] * 10
        assert torch.equal(layer(x, None, wide=True), wide)
        assert layer(x, None).dtype == torch.bfloat16


class Asking(Gated):
    """Asks what its arguments and attributes are, of which a proxy knows nothing."""

    def __init__(self, question):
        super().__init__()
        self.question, self.factor = question, 2.0

    def forward(self, x, cache=None):
        y = self.down_proj(self.act_fn(self.gate_proj(x)))
        asked = {
            "argument": lambda: isinstance(x, torch.Tensor) and not isinstance(cache, dict),
            "parameter": lambda: isinstance(self.up_proj.weight, nn.Parameter),
            "computed": lambda: isinstance(y, torch.Tensor),
            "is_tensor": lambda: torch.is_tensor(y),
            "hasattr": lambda: not hasattr(cache, "update"),
            "getattr": lambda: getattr(y, "is_quantized", True) is False,
            "callable": lambda: not callable(y),
        }
        return y * self.factor if asked[self.question]() else -y


class AskingType(Asking):
    def forward(self, x):
        y = self.down_proj(self.act_fn(self.gate_proj(x)))
        return y * self.factor if type(y) is torch.Tensor else -y


@pytest.mark.parametrize(
    ("kind", "question", "fused"),
    [
        (Asking, "argument", 2),
        (Asking, "parameter", 2),
        (Asking, "computed", 0),
        (Asking, "is_tensor", 0),
        (Asking, "hasattr", 1),  # of None there is an answer
        (Asking, "getattr", 0),
        (Asking, "callable", 0),
        (AskingType, "", 0),
    ],
)
def test_what_a_forward_asks_is_answered_as_in_a_call(launches, kind, question, fused):
    torch.manual_seed(0)
    model, x = kind(question).bfloat16().eval(), torch.randn(24, 32).bfloat16()
    calls = [(x,)] if kind is AskingType else [(x,), (x, {"update": x})]
    with torch.no_grad(), triton_ext.emulate("sm_90"):
        expected = [model(*arguments) for arguments in calls]
        triton_ext.fuse_activations(model)
        for arguments, exact in zip(calls, expected, strict=True):
            assert (model(*arguments) - exact).abs().max() < 2e-2
    assert launches == ["silu"] * fused


def test_attributes_that_change(launches):
    """A module with others than when it was changed does what it did before."""
    torch.manual_seed(0)
    model, x = Asking("parameter").bfloat16().eval(), torch.randn(24, 32).bfloat16()
    model.function = torch.neg
    other = copy.deepcopy(model)
    triton_ext.fuse_activations(model)
    with torch.no_grad(), triton_ext.emulate("sm_90"):
        for name, value in (("factor", 3.0), ("act_fn", nn.ReLU()), ("function", torch.abs)):
            before = getattr(model, name)
            for each in (model, other):
                setattr(each, name, value)
            assert torch.equal(model(x), other(x))
            assert not launches
            for each in (model, other):
                setattr(each, name, before)
        model(x)
    assert launches == ["silu"]


def test_training_is_as_before(launches):
    model, x = model_of(Gated), torch.randn(24, 32).bfloat16()
    other = copy.deepcopy(model)
    triton_ext.fuse_activations(model)
    for each in (model, other):
        each(x).sum().backward()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)
    assert not launches


def test_weights_that_were_moved_are_multiplied_apart(launches):
    """As are those of the host, where no GPU is emulated, by torch."""
    model, x = model_of(Gated), torch.randn(24, 32).bfloat16()
    triton_ext.fuse_activations(model)
    with torch.no_grad():
        expected = model(x)
    assert not launches
    model[0].up_proj.weight.data = model[0].up_proj.weight.data.clone()
    with torch.no_grad(), triton_ext.emulate("sm_90"):
        made = model(x)
    assert launches == ["silu", None]
    assert (made - expected).abs().max() < 2e-2
    assert triton_ext.fuse_activations(model) == ["0"]
    assert pair_of(model[0].gate_proj.weight, model[0].up_proj.weight) is not None


def test_layers_that_were_replaced_are_called(launches):
    model, x = model_of(Gated), torch.randn(24, 32).bfloat16()
    triton_ext.fuse_activations(model)
    seen = []
    for layer in (model[0].up_proj, model[0].act_fn):
        handle = layer.register_forward_hook(lambda *_: seen.append("hook"))
        with torch.no_grad(), triton_ext.emulate("sm_90"):
            model(x)
        handle.remove()
    model[0].gate_proj = nn.Sequential(model[0].gate_proj)
    with torch.no_grad(), triton_ext.emulate("sm_90"):
        model(x)
    assert seen == ["hook"] * 2
    assert not launches


def test_what_is_loaded_copied_and_pickled():
    model, x = model_of(Gated), torch.randn(24, 32).bfloat16()
    triton_ext.fuse_activations(model)
    model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})
    assert pair_of(model[0].gate_proj.weight, model[0].up_proj.weight) is not None
    with torch.no_grad():
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert type(other[0]) is Gated
            assert torch.equal(other(x), model(x))


def test_a_compiled_model(launches):
    model, x = model_of(Gated), torch.randn(24, 32).bfloat16()
    with torch.no_grad():
        expected = model(x)
        triton_ext.fuse_activations(model)
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        with triton_ext.emulate("sm_90"):
            made = compiled(x)
    assert launches == ["swiglu"]
    assert (made - expected).abs().max() < 2e-2
