"""Values in registers that no address, count or condition is made of.

An unknown number may be right; one that comes from a register that nothing has written, or from
tensors, is not. `Poison` spreads to whatever is computed with it.
"""

from __future__ import annotations

from typing import Any


class Poison:
    """A value of which no address and no condition may be made.

    Args:
        description: where it comes from, in words.
    """

    def __init__(self, description: str) -> None:
        self.description = description

    def _same(self, *_: Any) -> Any:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _same
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _same
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _same
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _same
    __neg__ = __invert__ = __abs__ = _same
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _same
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return self.description


UNWRITTEN: Any = Poison("a register that nothing has written")
OF_TENSORS: Any = Poison("computed from the elements of tensors")
OF_SOME_LANES: Any = Poison("what some lanes of the warp agree on")
NO_PARAMETER: Any = Poison("loaded from elsewhere, by the address of a parameter")
