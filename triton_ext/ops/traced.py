"""Where in a module's `forward` an activation follows a linear layer, and a `forward` that asks for
both at once.

A forward is traced by ``torch.fx``, once for each way of calling it: arguments that are None,
flags, numbers and strings are what they are, so that it decides by them as it always does. Modules
with parameters are called, not looked into. A decision by a type of elements is made for that of
the linear layers, and checked in each call; so are attributes of the module that are numbers,
strings and flags. One by values of tensors, or by what a computed value is an instance of, cannot
be traced.
"""

from __future__ import annotations

import builtins
import inspect
import operator
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from triton_ext.ops.activated import GATED, activated
from triton_ext.ops.gates import FUNCTIONS

MOST_WAYS = 8
"""How many ways of calling a module are traced."""
ORIGINAL = "_triton_ext_forward"
"""The attribute of a changed module's class that is its own forward."""
CONSTANTS = (bool, int, float, str, type(None))
_FUNCTIONS: Mapping[Any, str] = {
    functional.relu: "relu", torch.relu: "relu", functional.silu: "silu",
}  # fmt: skip
_GELUS: Mapping[Any, str] = {"none": "gelu", "tanh": "gelu_tanh"}
"""By torch's name of the approximation."""
_NAMES = {"relu", "silu", "gelu"}
"""Names of functions without one of which a forward that has no activation module is not traced."""
_QUESTIONS = ("isinstance", "hasattr", "getattr", "callable")
"""What Python is asked of a value: a proxy is no tensor, and has every attribute."""
_TRACING = ("torch.fx", "torch.overrides", "torch.nn.parameter", __name__)
"""Modules that know of proxies, or ask for those who do."""
_OTHERS = "**"
"""The name under which arguments are handed on that only a caller knows."""
SAMPLES = torch.linspace(-32, 32, 4 * 97, dtype=torch.float64).view(97, 4).T.contiguous()
"""Inputs by whose results an activation is recognized."""


class OtherTypeError(TypeError):
    """A tensor is not of the type that a trace expected."""


class Traced(NamedTuple):
    """A forward for one way of calling a module.

    Attributes:
        forward: what is called in place of the module's own.
        linears: the names of the linear layers that it does not call any more.
        gated: of those, gates and ups.
        state: what it was traced with.
    """

    forward: Callable[..., Any]
    linears: Sequence[str]
    gated: Sequence[tuple[str, str]]
    state: State


class State(NamedTuple):
    """What a trace has taken of a module.

    Attributes:
        constants: the module's numbers, strings, flags and functions.
        children: modules without parameters, which it has looked into, and theirs.
    """

    constants: Mapping[str, Any]
    children: Mapping[str, tuple[nn.Module, Mapping[str, Any]]]

    @classmethod
    def of(cls, module: nn.Module) -> State:
        """That of a module as it is."""
        return cls(_attributes(module), {
            name: (each, _attributes(each)) for name, each in module.named_children()
            if next(each.parameters(), None) is None
        })  # fmt: skip

    def is_that_of(self, module: nn.Module) -> bool:
        """Whether the module is still as it was, and nobody listens to what a trace passes by."""
        return _has(module, self.constants) and all(
            getattr(module, name, None) is child and not has_hooks(child) and _has(child, constants)
            for name, (child, constants) in self.children.items()
        )


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of a module does more than its forward."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {
        name: value for name, value in vars(module).items()
        if (type(value) in CONSTANTS or callable(value)) and name != "training"
    }  # fmt: skip


def _has(module: nn.Module, constants: Mapping[str, Any]) -> bool:
    return all(getattr(module, name, None) == value for name, value in constants.items())


class Change:
    """How a module is changed.

    Attributes:
        gated: the names of the linear layers that are gate and up.
    """

    def __init__(self, first: Traced, is_alone: bool) -> None:
        self.gated = first.gated
        self._alone = first if is_alone else None
        self._ways: dict[Any, Traced | None] = {}
        self._is_forgotten = False

    def traced(
        self, module: nn.Module, arguments: tuple[Any, ...], others: Mapping[str, Any]
    ) -> Traced | None:
        """The forward for a call; None for the module's own."""
        found = self._found(module, arguments, others)
        return found if found is not None and found.state.is_that_of(module) else None

    def _found(
        self, module: nn.Module, arguments: tuple[Any, ...], others: Mapping[str, Any]
    ) -> Traced | None:
        if len(arguments) == 1 and not others and type(arguments[0]) is Tensor and self._alone:
            return self._alone
        if self._is_forgotten or torch.compiler.is_compiling():  # whose own fusions do as well
            return None
        given = *map(_kind, arguments), *((name, _kind(each)) for name, each in others.items())
        if given not in self._ways:
            if len(self._ways) >= MOST_WAYS:
                return None
            constants, kinds = _given(module, arguments, others)
            self._ways[given] = _traced(module, constants, kinds)
        return self._ways[given]

    def forget(self) -> None:
        """Leave the module to its own forward, whose types are not those of its layers."""
        self._alone, self._is_forgotten = None, True


def _name(module: nn.Module) -> str:
    """That of a module's own forward."""
    return ORIGINAL if hasattr(type(module), ORIGINAL) else "forward"


def _kind(argument: Any) -> Any:
    """What a trace depends on of an argument."""
    kind = type(argument)
    return (kind, argument) if kind in CONSTANTS else kind


def _given(
    module: nn.Module, arguments: tuple[Any, ...], others: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, type]]:
    """The arguments of a call that a trace takes as they are, by name, defaults among them; and the
    types of the rest."""
    signature = inspect.signature(getattr(type(module), _name(module)))
    bound = signature.bind(module, *arguments, **others)
    bound.apply_defaults()
    kinds = {name: type(each) for name, each in bound.arguments.items()}
    constants = {name: each for name, each in bound.arguments.items() if kinds[name] in CONSTANTS}
    return constants, kinds


def change_of(module: nn.Module) -> Change | None:
    """How a module is changed, if it is: as it is called with what it must be called with."""
    if not any(type(each) is nn.Linear for each in module.children()):
        return None
    parameters = [*inspect.signature(getattr(type(module), _name(module))).parameters.values()][1:]
    required = [
        each for each in parameters
        if each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]  # fmt: skip
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    is_alone = bool(parameters) and required == parameters[:1]
    first = _traced(module, defaults, {parameters[0].name: Tensor} if is_alone else {})
    return None if first is None else Change(first, is_alone)


# ------------------------------------------------------------------------------------- tracing


class _Typed(fx.Proxy):
    """What a trace does not know, but for the type of its elements."""

    @property
    def dtype(self) -> Any:
        tracer: Any = self.tracer
        tracer.create_proxy("call_function", _require, (self, tracer.dtype), {})
        return tracer.dtype


def _require(tensor: Any, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype:
        raise OtherTypeError(f"{tensor.dtype} in place of {dtype}")


class _Asked:
    """What is asked of a value of a trace has the answer of a call: for parameters, and arguments
    whose type is known; else the forward cannot be traced. In all of the process, as fx does."""

    def __init__(self, root: nn.Module, kinds: Mapping[str, type]) -> None:
        self._known = dict([*root.named_parameters(), *root.named_buffers()])
        self._kinds = kinds

    def __enter__(self) -> None:
        self._before = {name: getattr(builtins, name) for name in _QUESTIONS}
        for name, function in self._before.items():
            setattr(builtins, name, self._answering(name, function))

    def __exit__(self, *error: object) -> None:
        for name, function in self._before.items():
            setattr(builtins, name, function)

    def _answering(self, question: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def answer(of: Any, *others: Any) -> Any:
            if not issubclass(type(of), fx.Proxy):
                return function(of, *others)
            asker = sys._getframe(1).f_globals.get("__name__", "")
            if asker.startswith(_TRACING):
                return function(of, *others)
            node = of.node
            if node.op == "get_attr" and node.target in self._known:
                return function(self._known[str(node.target)], *others)
            if question == "isinstance" and node.op == "placeholder" and node.target in self._kinds:
                return issubclass(self._kinds[str(node.target)], *others)
            raise fx.proxy.TraceError(f"{question} of {of}")

        return answer


def _called(module: nn.Module, others: Mapping[str, Any], *arguments: Any, **given: Any) -> Any:
    return module(*arguments, **given, **others)


class _Tracer(fx.Tracer):
    def __init__(
        self, constants: Mapping[str, Any], known: Any, dtype: torch.dtype, name: str
    ) -> None:
        super().__init__()
        self.traced_func_name = name
        self._constants, self._known, self.dtype = constants, known, dtype

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m in self._known or next(m.parameters(), None) is not None

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Typed(node, self)

    def _proxy_placeholder(self, name: str, *others: Any) -> Any:
        proxy = super()._proxy_placeholder(name, *others)
        return self._constants.get(name, proxy)

    def keys(self, obj: fx.Proxy) -> Any:
        return iter((_OTHERS,))

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        path = self.path_of_module(m)
        if _OTHERS not in kwargs or not self.is_leaf_module(m, path):
            return super().call_module(m, forward, args, kwargs)
        given = {name: each for name, each in kwargs.items() if name != _OTHERS}
        others = self.proxy(kwargs[_OTHERS].node.args[0])
        module = self.create_proxy("get_attr", path, (), {})
        return self.create_proxy("call_function", _called, (module, others, *args), given)


def _traced(
    module: nn.Module, constants: Mapping[str, Any], kinds: Mapping[str, type]
) -> Traced | None:
    """The forward of a module that is called with such constants, and other arguments of these
    types, as far as they are known; None if nothing is fused, or it cannot be traced."""
    linears = {name: each for name, each in module.named_children() if type(each) is nn.Linear}
    modes = {each: each.training for each in module.modules()}
    module.eval()  # what asks for the mode is traced in this one
    try:
        known = dict(_known_activations(module))
        code: Any = getattr(inspect.unwrap(getattr(type(module), _name(module))), "__code__", None)
        has_functions = any(map(callable, vars(module).values()))
        if not (known or has_functions or _NAMES & {*getattr(code, "co_names", _NAMES)}):
            return None  # of which there are many, whose traces would take long
        if "type" in getattr(code, "co_names", ()):
            return None  # who asks for it learns that of the proxy
        dtype = next(iter(linears.values())).weight.dtype
        with _Undone(module), _Asked(module, kinds):
            graph = _Tracer(constants, known, dtype, _name(module)).trace(module)
        return _fused(module, graph, linears, known)
    except Exception:  # whatever its forward does with what is no tensor
        return None
    finally:
        for each, mode in modes.items():
            each.training = mode


class _Undone:
    """What a forward does to its modules and to random numbers while it is traced is undone, and
    an error: a call does it each time."""

    def __init__(self, module: nn.Module) -> None:
        self._modules = [*module.modules()]

    def __enter__(self) -> None:
        self._before = [{**vars(each)} for each in self._modules]
        self._random = random.getstate(), torch.get_rng_state()

    def __exit__(self, *error: object) -> None:
        same = True
        for each, before in zip(self._modules, self._before, strict=True):
            now = vars(each)
            same &= now.keys() == before.keys() and all(now[name] is before[name] for name in now)
            now.clear()
            now.update(before)
        same &= random.getstate() == self._random[0]
        same &= torch.equal(torch.get_rng_state(), self._random[1])
        random.setstate(self._random[0])
        torch.set_rng_state(self._random[1])
        if not same:
            raise ValueError("forward changes what it is called with")


def _known_activations(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Modules that compute an activation, whatever their names and formulas."""
    for each in module.modules():
        if each is module or has_hooks(each):
            continue
        if next(each.parameters(), None) is not None or next(each.buffers(), None) is not None:
            continue
        try:
            with torch.no_grad():
                made = each(SAMPLES.clone())
        except Exception:
            continue
        if not (isinstance(made, Tensor) and made.shape == SAMPLES.shape):
            continue
        for name, function in FUNCTIONS.items():
            if torch.allclose(made, function(SAMPLES), rtol=1e-7, atol=1e-7):
                yield each, name
                break


# ------------------------------------------------------------------------------------- matching


def _fused(
    module: nn.Module, graph: fx.Graph, linears: Mapping[str, nn.Linear], known: Any
) -> Traced | None:
    """The forward of a graph after what can be one launch has become one."""
    called: list[str] = []
    gated: list[tuple[str, str]] = []
    for node in [*graph.nodes]:
        node.type = None  # which would be written into its code
        if node.op == "get_attr" and str(node.target).startswith("_tensor_constant"):
            return None
        activation = _activation(node, module, known)
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
    for node in [*graph.nodes]:
        if node.op == "call_function" and node.args[1:] == (_OTHERS,) and not node.users:
            graph.erase_node(node)
    if any(_OTHERS in (*node.args, *node.kwargs) for node in graph.nodes):
        return None
    forward = type(fx.GraphModule(module, graph)).forward
    return Traced(forward, called, gated, State.of(module))


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
    if second is not None and activation in GATED and _are_pair(first, second, linears):
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


def _activation(node: fx.Node, module: nn.Module, known: Mapping[nn.Module, str]) -> str | None:
    """The name of the activation that a node is."""
    if node.op == "call_module":
        return known.get(module.get_submodule(str(node.target)))
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
