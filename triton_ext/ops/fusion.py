"""The activations of a model's linear layers, made in the launches of their products.

PyTorch's eager mode launches each operation by itself: what follows a product reads all of it from
memory and writes it again. `fuse_activations` finds the modules of a model where an activation
follows a linear layer, by tracing their `forward`, and gives them one that asks for both at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from triton_ext.ops.activated import pair_of
from triton_ext.ops.traced import ORIGINAL, Change, OtherTypeError, change_of, has_hooks

_CHANGE = "_triton_ext_change"
"""The attribute of a changed module's class that says how."""


def fuse_activations(model: nn.Module) -> list[str]:
    """Make a model's activations in the launches of the linear layers before them.

    A module is changed with linear layers right below it, in whose `forward` a relu, silu or gelu
    (as a function, or a module that computes one of them, by whatever formula) follows one of them;
    or a product of that and of another linear layer of the same input (swiglu, reglu, geglu), or of
    the second half of the outputs whose first half is activated (``chunk(2, dim=-1)``). It keeps
    its parameters, their names and its hooks, and calls its other modules as before. The weights of
    gate and up are laid one after the other; after these were moved (``model.to``), products and
    activation are launches of their own, until it is called again.

    Only in evaluation mode (``model.eval()``), where no gradients are asked for, does a changed
    module work otherwise than before: in training the sums before an activation are kept, and
    nothing would be gained. Nor under autocast, nor where a linear layer was replaced, or it or its
    activation has hooks.
    What its `forward` does may depend on which arguments are None, on numbers, strings and flags
    among them and among the module's attributes, and on types of elements; if on values of tensors,
    the module is not changed. Of other objects, such as a configuration, it knows what they say
    when it is changed.

    Args:
        model: on the device, and of the type, that it stays with.

    Returns:
        The names of the modules that were changed.
    """
    found = []
    for name, module in model.named_modules():
        change: Change | None = getattr(type(module), _CHANGE, None)
        is_known = change is not None
        change = change or change_of(module)
        if change is None:
            continue
        for gate, up in change.gated:
            _lay_together(getattr(module, gate), getattr(module, up))
        if not is_known:
            module.__class__ = _subclass(type(module), change)
        found.append(name)
    return found


def _lay_together(gate: nn.Linear, up: nn.Linear) -> None:
    """Put two weights into one piece of memory, one after the other."""
    if pair_of(gate.weight, up.weight) is None:
        together = torch.cat([gate.weight.data, up.weight.data])
        gate.weight.data, up.weight.data = together.chunk(2)


def _subclass(original: type[nn.Module], change: Change) -> type[nn.Module]:
    """A module's class with another `forward`. A copy of such a module is one of the original's."""

    def forward(self: Any, *arguments: Any, **others: Any) -> Any:
        traced = None if _is_as_before(self) else change.traced(self, arguments, others)
        if traced is None or not all(_is_plain(getattr(self, name)) for name in traced.linears):
            return original.forward(self, *arguments, **others)
        try:
            return traced.forward(self, *arguments, **others)
        except OtherTypeError:
            change.forget()
            return original.forward(self, *arguments, **others)

    def reduce_ex(self: Any, protocol: Any) -> Any:
        reduced: Any = nn.Module.__reduce_ex__(self, protocol)
        return object.__new__, (original,), *reduced[2:]

    fields = {
        "forward": forward, "__reduce_ex__": reduce_ex, "__module__": original.__module__,
        ORIGINAL: original.forward, _CHANGE: change,
    }  # fmt: skip
    return type(original.__name__, (original,), fields)


def _is_as_before(module: nn.Module) -> bool:
    """Whether a changed module does what it did before."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled():
        return True
    return any(each.training for each in module.modules())


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer is nothing but a linear layer: others may have been put in its place."""
    return type(layer) is nn.Linear and not has_hooks(layer)
