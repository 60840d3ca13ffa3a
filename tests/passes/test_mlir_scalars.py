"""verify-descriptors: which conditions of a module always hold, at their bounds and beside them."""

from __future__ import annotations

import operator

import pytest

from triton_ext.mlir.module import MlirModule
from triton_ext.passes.verify_descriptors.meaning.mlir_scalars import Scalars

SIGNED = {"slt": operator.lt, "sle": operator.le, "sgt": operator.gt, "sge": operator.ge,
          "eq": operator.eq, "ne": operator.ne}  # fmt: skip
UNSIGNED = ("ult", "ule", "ugt", "uge")
BESIDE = (-2, -1, 0, 1, 2)


def module_of(body):
    return MlirModule(f"""\
module attributes {{"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32}} {{
  tt.func public @kernel(%x: i32, %y: i32) {{
{body}
    tt.return
  }}
}}
""")


def conditions(module):
    """Each comparison's name, and what is known of it."""
    scalars = Scalars(module)
    return {
        each.name: scalars.condition(each)
        for each in module.values
        if each.definition is not None and each.definition.name == "arith.cmpi"
    }


def compared(left, right):
    """A comparison of the two by every predicate, each named after it."""
    return "\n".join(
        f"    %{name} = arith.cmpi {name}, {left}, {right} : i32" for name in (*SIGNED, *UNSIGNED)
    )


@pytest.mark.parametrize("apart", BESIDE)
def test_sums_of_equal_terms_are_compared_by_their_constants(apart):
    sums = "    %l = arith.addi %x, %c5 : i32\n    %r = arith.addi %x, %cr : i32\n"
    constants = f"    %c5 = arith.constant 5 : i32\n    %cr = arith.constant {5 + apart} : i32\n"
    found = conditions(module_of(constants + sums + compared("%l", "%r")))
    for name, holds in SIGNED.items():
        assert found[f"%{name}"] is holds(5, 5 + apart), name
    for name in UNSIGNED:  # a sum that wraps would decide otherwise
        assert found[f"%{name}"] is None, name


def test_sums_of_other_terms_are_not_compared():
    found = conditions(module_of(compared("%x", "%y")))
    assert len(found) == 10
    assert set(found.values()) == {None}


@pytest.mark.parametrize("bounds", [(0, 8, 4), (0, 9, 4), (0, 1, 1), (3, 4, 7), (-4, 5, 1)])
def test_a_counter_is_compared_by_its_first_and_last_value(bounds):
    """Against what holds of every integer from the first to the last."""
    first, last = range(*bounds)[0], range(*bounds)[-1]
    lower, upper, step = bounds
    for end in {first, last}:
        for limit in (end + beside for beside in BESIDE):
            found = conditions(
                module_of(f"""\
    %lower = arith.constant {lower} : i32
    %upper = arith.constant {upper} : i32
    %step = arith.constant {step} : i32
    %limit = arith.constant {limit} : i32
    scf.for %i = %lower to %upper step %step : i32 {{
{compared("%i", "%limit")}
    }}""")
            )
            for name, holds in SIGNED.items():
                outcomes = {holds(value, limit) for value in range(first, last + 1)}
                expected = outcomes.pop() if len(outcomes) == 1 else None
                assert found[f"%{name}"] is expected, (name, limit)


@pytest.mark.parametrize("extent", BESIDE)
def test_a_loop_of_equal_bounds_is_not_executed(extent):
    """Its bounds are sums of what is not known, and differ by a number."""
    module = module_of(f"""\
    %extent = arith.constant {extent} : i32
    %one = arith.constant 1 : i32
    %upper = arith.addi %x, %extent : i32
    scf.for %i = %x to %upper step %one : i32 {{
{compared("%i", "%x")}
    }}""")
    inside = next(each.definition for each in module.values if each.name == "%slt")
    assert Scalars(module).is_executed(inside) is (extent > 0)


@pytest.mark.parametrize("beside", BESIDE)
def test_a_counter_stays_below_a_bound_that_is_not_known(beside):
    """No more is known of ``%y <= i < %x`` than that."""
    found = conditions(
        module_of(f"""\
    %one = arith.constant 1 : i32
    %beside = arith.constant {beside} : i32
    %limit = arith.addi %x, %beside : i32
    scf.for %i = %y to %x step %one : i32 {{
{compared("%i", "%limit")}
    }}""")
    )
    below, at_most = (True if beside >= least else None for least in (0, -1))
    assert (found["%slt"], found["%sge"]) == (below, below and False)
    assert (found["%sle"], found["%sgt"]) == (at_most, at_most and False)
    assert found["%ne"] is below
