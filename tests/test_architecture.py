"""The import graph: no circle of modules larger than three files, imports for types included."""

from __future__ import annotations

import sys

import pytest
from sites import CHECKOUT

LARGEST_CIRCLE = 3


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """The packages as they are installed: `passes` and `kernels` lie at the top of the checkout."""
    grimp = pytest.importorskip("grimp")
    tree = tmp_path_factory.mktemp("tree") / "triton_ext"
    tree.mkdir()
    for part in [*(CHECKOUT / "triton_ext").iterdir(), CHECKOUT / "passes", CHECKOUT / "kernels"]:
        (tree / part.name).symlink_to(part)
    kept = {name: module for name, module in sys.modules.items() if name.startswith("triton_ext")}
    for name in kept:
        del sys.modules[name]
    sys.path.insert(0, str(tree.parent))
    try:
        return grimp.build_graph("triton_ext", cache_dir=None)
    finally:
        sys.path.remove(str(tree.parent))
        sys.modules.update(kept)


def circles(edges):
    """The strongly connected components of more than one module."""
    reached = {}

    def reachable(start):
        if start not in reached:
            seen, todo = set(), [start]
            while todo:
                for each in edges[todo.pop()]:
                    if each not in seen:
                        seen.add(each)
                        todo.append(each)
            reached[start] = seen
        return reached[start]

    found = []
    for module in edges:
        circle = {other for other in reachable(module) if module in reachable(other)}
        if len(circle) > 1 and circle not in found:
            found.append(circle)
    return found


def test_circles_are_small(graph):
    edges = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
    assert len(edges) > 200
    too_large = [sorted(circle) for circle in circles(edges) if len(circle) > LARGEST_CIRCLE]
    assert not too_large


def test_a_circle_is_found():
    edges = {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"a", "e"}, "e": set()}
    assert circles(edges) == [{"a", "b", "c", "d"}]
