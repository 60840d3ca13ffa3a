"""Splitting at the commas of the top level."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_ext.splitting import split_arguments

WORDS = st.text("ab%_0", min_size=1, max_size=4)
ARGUMENTS = st.recursive(
    WORDS,
    lambda inner: st.builds(
        lambda name, brackets, inside: name + brackets[0] + ", ".join(inside) + brackets[1],
        st.text("ab", max_size=2),
        st.sampled_from(["()", "[]", "{}", "<>"]),
        st.lists(inner, max_size=3),
    ),
    max_leaves=12,
)


@given(st.lists(ARGUMENTS, max_size=5), st.sampled_from([",", ", ", " ,\n"]))
def test_arguments_are_found_again(arguments, comma):
    assert split_arguments(comma.join(arguments)) == tuple(arguments)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ()),
        (" ", ()),
        ("a,", ("a", "")),
        (",", ("", "")),
        ("(d0) -> (d0, d1), 2", ("(d0) -> (d0, d1)", "2")),  # an arrow closes nothing
        ("a), b", ("a), b",)),
    ],
)
def test_what_stands_at_the_edges(text, parts):
    assert split_arguments(text) == parts
