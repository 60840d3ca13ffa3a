"""The activations of a model's linear layers, made in the launches of their products.

PyTorch's eager mode launches each operation by itself: what follows a product reads all of it from
memory and writes it again. `fuse_activations` finds the modules of a model where an activation
follows a linear layer, by tracing their `forward`, and gives them one that asks for both at once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from triton_ext.ops.device import active_emulator, find_gpu
from triton_ext.ops.epilogue import ACTIVATION_FUNCTIONS
from triton_ext.ops.functional import linear
from triton_ext.ops.gates import FUNCTIONS, GATES, columns_after
from triton_ext.ops.operators import defined
from triton_ext.ops.types import HALF_TYPES

GATED: Mapping[str, Any] = {
    gate.activation: name for name, gate in GATES.items()
    if gate.activation in FUNCTIONS and not gate.interleaved
}  # fmt: skip
"""The gated activation of each activation."""
_FUNCTIONS: Mapping[Any, str] = {
    functional.relu: "relu", torch.relu: "relu", functional.silu: "silu",
}  # fmt: skip
_MODULES: Mapping[type, str] = {nn.ReLU: "relu", nn.SiLU: "silu"}
_CHANGE = "_triton_ext_change"
"""The attribute of a changed module's class that says how."""
_GELUS: Mapping[Any, str] = {"none": "gelu", "tanh": "gelu_tanh"}
"""By torch's name of the approximation."""


def activated(
    input: Tensor, weight: Tensor, up: Tensor | None, bias: Tensor | None, activation: str
) -> Tensor:
    """``activation(input @ weight.T + bias)``, times ``input @ up.T`` if there is an up.

    It is one launch on a GPU that has kernels for it; of weight and up, where up follows the weight
    in memory (`fuse_activations` sees to it). Else it is the same by several.

    Args:
        input: (..., K).
        weight, up: (N, K).
        bias: (N,), without an up.
        activation: a name of `ACTIVATION_FUNCTIONS`; of `FUNCTIONS`, with an up.
    """
    if torch.compiler.is_compiling():  # which cannot look where tensors are
        made: Tensor = _operator(input, weight, up, bias, activation)
        return made
    return _activated(input, weight, up, bias, activation)


def _activated(
    input: Tensor, weight: Tensor, up: Tensor | None, bias: Tensor | None, activation: Any
) -> Tensor:
    if not _has_kernels(input, weight):
        sums = ACTIVATION_FUNCTIONS[activation](functional.linear(input, weight, bias))
        return sums if up is None else sums * functional.linear(input, up)
    if up is None:
        return linear(input, weight, bias, activation=activation)
    pair = _pair(weight, up)
    if pair is None:
        return linear(input, weight, activation=activation) * linear(input, up)
    return linear(input, pair, activation=GATED[activation])


def _has_kernels(input: Tensor, weight: Tensor) -> bool:
    if not (input.dtype == weight.dtype in HALF_TYPES and input.numel()):
        return False
    if input.device.type == "cpu" and active_emulator() is None:
        return False
    return not isinstance(find_gpu(input.device), str)


def _pair(first: Tensor, second: Tensor) -> Tensor | None:
    """(2 N, K) of two matrices (N, K) of which the second follows the first in memory."""
    if not (
        first.is_contiguous()
        and second.is_contiguous()
        and first.shape == second.shape
        and first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
        and second.storage_offset() == first.storage_offset() + first.numel()
    ):
        return None
    rows, columns = first.shape
    return first.as_strided((2 * rows, columns), (columns, 1))


def _fake(
    input: Tensor, weight: Tensor, up: Tensor | None, bias: Tensor | None, activation: str
) -> Tensor:
    return input.new_empty((*input.shape[:-1], columns_after(activation, weight.shape[0])))


_operator = defined(
    "activated(Tensor input, Tensor weight, Tensor? up, Tensor? bias, str activation) -> Tensor",
    _activated,
    _fake,
)


def fuse_activations(model: nn.Module) -> list[str]:
    """Make a model's activations in the launches of the linear layers before them.

    A module is changed whose parameters are those of linear layers right below it, and in whose
    `forward` a relu, silu or gelu follows one of them; or a product of that and of another linear
    layer of the same input (swiglu, reglu, geglu), or of the second half of the outputs whose first
    half is activated (``chunk(2, dim=-1)``). It keeps its parameters, their names and its hooks.
    The weights of gate and up are laid one after the other; after these were moved (``model.to``),
    products and activation are launches of their own, until it is called again.

    Only in evaluation mode (``model.eval()``), where no gradients are asked for, does a changed
    module work otherwise than before: in training the sums before an activation are kept, and
    nothing would be gained. Nor under autocast, nor where a linear layer was replaced or has hooks.

    Args:
        model: on the device, and of the type, that it stays with.

    Returns:
        The names of the modules that were changed.
    """
    found = []
    for name, module in model.named_modules():
        known: _Change | None = getattr(type(module), _CHANGE, None)
        change = known or _change(module)
        if change is None:
            continue
        for gate, up in change.gated:
            _lay_together(getattr(module, gate), getattr(module, up))
        if known is None:
            module.__class__ = _subclass(type(module), change)
        found.append(name)
    return found


class _Change(NamedTuple):
    """How a module is changed.

    Attributes:
        forward: what is called in place of its own.
        linears: the names of the linear layers that it does not call any more.
        gated: of those, gates and ups.
    """

    forward: Callable[..., Any]
    linears: Sequence[str]
    gated: Sequence[tuple[str, str]]


class _Tracer(fx.Tracer):
    """Looks into all modules but linear layers and torch's activations."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in (nn.Linear, nn.GELU, *_MODULES)


def _change(module: nn.Module) -> _Change | None:
    """How a module is changed, if it is."""
    linears = {name: each for name, each in module.named_children() if type(each) is nn.Linear}
    theirs = {id(each) for layer in linears.values() for each in layer.parameters()}
    if not linears or any(id(each) not in theirs for each in module.parameters()):
        return None
    modes = {each: each.training for each in module.modules()}
    try:
        graph = _Tracer().trace(module.eval())  # what asks for the mode is traced in this one
    except Exception:  # whatever its forward does with what is no tensor
        return None
    finally:
        for each, mode in modes.items():
            each.training = mode
    called: list[str] = []
    gated: list[tuple[str, str]] = []
    for node in [*graph.nodes]:
        activation = _activation(node, module)
        match = None if activation is None else _match(node, activation, linears)
        if match is None:
            continue
        called += match.linears
        gate, *ups = match.linears
        gated += [(gate, up) for up in ups]
        last = match.nodes[0]
        with graph.inserting_before(last):
            weight, bias = (
                None if getattr(linears[gate], name) is None else graph.get_attr(f"{gate}.{name}")
                for name in ("weight", "bias")
            )
            up = graph.get_attr(f"{ups[0]}.weight") if ups else None
            arguments = match.input, weight, up, bias, match.activation
            last.replace_all_uses_with(graph.call_function(activated, arguments))
        for each in match.nodes:
            graph.erase_node(each)
    if not called:
        return None
    return _Change(type(fx.GraphModule(module, graph)).forward, called, gated)


class _Match(NamedTuple):
    """What becomes one launch.

    Attributes:
        nodes: those that go, each before what it uses.
        linears: the layer, or gate and up.
        input: that of the layers.
        activation: a name of `ACTIVATION_FUNCTIONS`.
    """

    nodes: Sequence[Any]
    linears: Sequence[str]
    input: Any
    activation: str


def _match(node: fx.Node, activation: str, linears: Mapping[str, nn.Linear]) -> _Match | None:
    """What becomes one launch with an activation."""
    user = next(iter(node.users)) if len(node.users) == 1 else None
    other = None if user is None else _other_factor(user, node)
    first = _product(node.args[0], linears)
    if first is None:
        halves = _halves(node.args[0], other)
        first = None if halves is None else _product(halves.args[0], linears)
        if first is None or activation not in GATED:
            return None
        nodes = [user, node, node.args[0], other, halves, first]
        return _Match(nodes, [first.target], first.args[0], GATED[activation])
    second = _product(other, linears)
    if second is not None and _are_pair(first, second, linears):
        pair = [first.target, second.target]
        return _Match([user, node, first, second], pair, first.args[0], activation)
    return _Match([node, first], [first.target], first.args[0], activation)


def _halves(gate: Any, up: Any) -> Any:
    """The node whose first and second half of the last dimension two nodes are, and are alone."""
    if not all(
        isinstance(each, fx.Node)
        and each.op == "call_function"
        and each.target is operator.getitem
        and each.args[1] == which
        and len(each.users) == 1
        for which, each in enumerate((gate, up))
    ):
        return None
    whole = gate.args[0]
    is_chunk = (whole.op, whole.target) in (
        ("call_method", "chunk"),
        ("call_function", torch.chunk),
    )
    given = dict(zip(("input", "chunks", "dim"), whole.args, strict=False)) | whole.kwargs
    in_two = is_chunk and given.get("chunks") == 2 and given.get("dim") == -1
    return whole if in_two and {*whole.users} == {gate, up} else None


def _activation(node: fx.Node, module: nn.Module) -> str | None:
    """The name of the activation that a node is."""
    if node.op == "call_module":
        called = module.get_submodule(str(node.target))
        if type(called) is nn.GELU:
            return _GELUS[called.approximate]
        return _MODULES.get(type(called))
    if node.op != "call_function":
        return None
    if node.target is functional.gelu:
        return _GELUS.get(node.kwargs.get("approximate", "none"))
    return _FUNCTIONS.get(node.target)


def _product(node: Any, linears: Mapping[str, nn.Linear]) -> Any:
    """A node, if it is the output of a linear layer that nothing else uses."""
    is_node = isinstance(node, fx.Node) and node.op == "call_module"
    return node if is_node and node.target in linears and len(node.users) == 1 else None


def _other_factor(node: fx.Node, factor: fx.Node) -> Any:
    """What a node multiplies a factor with, if it does."""
    if node.op != "call_function" or node.target not in (torch.mul, operator.mul):
        return None
    others = [each for each in node.args if each is not factor]
    return others[0] if len(others) == 1 else None


def _are_pair(first: fx.Node, second: fx.Node, linears: Mapping[str, nn.Linear]) -> bool:
    """Whether two linear layers can be gate and up of one product."""
    gate, up = linears[str(first.target)], linears[str(second.target)]
    return (
        first.args == second.args
        and gate is not up
        and gate.bias is None is up.bias
        and gate.weight.shape == up.weight.shape
        and gate.weight.dtype == up.weight.dtype
        and gate.weight.device == up.weight.device
    )


def _lay_together(gate: nn.Linear, up: nn.Linear) -> None:
    """Put two weights into one piece of memory, one after the other."""
    if _pair(gate.weight, up.weight) is None:
        together = torch.cat([gate.weight.data, up.weight.data])
        gate.weight.data, up.weight.data = together.chunk(2)


def _subclass(original: type[nn.Module], change: _Change) -> type[nn.Module]:
    """A module's class with another `forward`. A copy of such a module is one of the original's."""

    def forward(self: Any, *arguments: Any, **others: Any) -> Any:
        if torch.is_grad_enabled() or torch.is_autocast_enabled():
            return original.forward(self, *arguments, **others)
        if any(each.training for each in self.modules()):
            return original.forward(self, *arguments, **others)
        if not all(_is_plain(getattr(self, name)) for name in change.linears):
            return original.forward(self, *arguments, **others)
        return change.forward(self, *arguments, **others)

    def reduce_ex(self: Any, protocol: Any) -> Any:
        reduced: Any = nn.Module.__reduce_ex__(self, protocol)
        return object.__new__, (original,), *reduced[2:]

    fields = {
        "forward": forward, "__reduce_ex__": reduce_ex, "__module__": original.__module__,
        _CHANGE: change,
    }  # fmt: skip
    return type(original.__name__, (original,), fields)


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer is nothing but a linear layer: others may have been put in its place."""
    return type(layer) is nn.Linear and not (layer._forward_hooks or layer._forward_pre_hooks)
