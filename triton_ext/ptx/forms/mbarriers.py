"""mbarriers: what counts arrivals and bytes, and lets threads wait for both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from triton_ext.ptx.forms.syntax import Condition, Form, flag, modifier, operand

_OPERATIONS = (
    "init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx", "test_wait", "try_wait",
    "pending_count",
)  # fmt: skip


_ARRIVALS = ("arrive", "arrive_drop")
_WAITS = ("test_wait", "try_wait")


def _is(*operations: str) -> Condition:
    return lambda values: values["operation"] in operations


def _has_bytes(values: Mapping[str, Any]) -> bool:
    return values["expects"] or values["operation"] in ("expect_tx", "complete_tx")


@dataclass(frozen=True)
class MbarrierOperation(Form):
    """``mbarrier.*`` (PTX ISA, "Parallel Synchronization and Communication Instructions:
    mbarrier").

    Attributes:
        operation: "init", "arrive", "try_wait", ...
        expects: ``.expect_tx`` of an arrival.
        may_not_complete: ``.noComplete`` of an arrival.
        by_parity: ``.parity``: a wait names a phase by its parity, not by a state.
        semantics: "acquire", "release" or "relaxed"; "" is the default.
        scope: "cta" or "cluster"; "" is the default.
        space: of the barrier's address; "" is a generic address.
        result: the register or predicate that is written, "_" or "".
        barrier: address of the mbarrier; "" of ``pending_count``.
        phase: the parity or the state that a wait names; the state of ``pending_count``.
        bytes: what is expected or completed (txCount).
        count: of arrivals; "" of an arrival is 1.
        time_limit: of a wait (suspendTimeHint).
    """

    OPCODES: ClassVar = {"mbarrier": ("b64",)}

    operation: str = modifier("|".join(_OPERATIONS))
    expects: bool = flag("expect_tx")
    may_not_complete: bool = flag("noComplete")
    by_parity: bool = flag("parity")
    semantics: str = modifier("acquire|release|relaxed", missing="")
    scope: str = modifier("cta|cluster", missing="")
    space: str = modifier("shared(?:::cta|::cluster)?", missing="")
    result: str = operand(_is(*_ARRIVALS, *_WAITS, "pending_count"), like=r"[^\[]")
    barrier: str = operand(lambda values: values["operation"] != "pending_count")
    phase: str = operand(_is(*_WAITS, "pending_count"))
    bytes: str = operand(_has_bytes)
    count: str = operand(
        lambda values: values["operation"] in ("init", *_ARRIVALS) and not values["expects"],
        optional=True,
    )
    time_limit: str = operand(_is("try_wait"), optional=True)

    def __post_init__(self) -> None:
        arrives, waits = self.operation in _ARRIVALS, self.operation in _WAITS
        if (self.expects or self.may_not_complete) > arrives or self.by_parity > waits:
            raise self.refuse(".expect_tx and .noComplete are for arrivals, .parity for waits")
        if (not self.result and (waits or not self.barrier)) or (
            not self.count and (self.operation == "init" or self.may_not_complete)
        ):
            raise self.refuse("an operand is missing")
        if self.space == "shared::cluster" and (
            waits or (arrives and self.result not in ("", "_"))
        ):
            raise self.refuse("an arrival at .shared::cluster returns no state, and no wait has it")
