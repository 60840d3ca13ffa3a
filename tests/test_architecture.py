"""The shape of the code: no circle of imports, those for types included; and no class, file or list
of parameters that is too large to be kept in mind."""

from __future__ import annotations

import ast
import sys

import pytest
from sites import CHECKOUT

MOST_MEMBERS, MOST_PARAMETERS, MOST_LINES = 25, 12, 600
OPERATORS = {"triton_ext/ops/grouped.py", "triton_ext/ops/torch_products.py"}
"""Functions with the parameters of torch's operators."""
OPTIONS = {"emulate", "run_ptx"}
"""Public functions whose parameters are the options of a run."""


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


def test_there_is_no_circle(graph):
    edges = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
    assert len(edges) > 200
    assert not circles(edges)


def test_a_circle_is_found():
    edges = {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"a", "e"}, "e": set()}
    assert circles(edges) == [{"a", "b", "c", "d"}]


def members(node):
    """A class's methods, fields, and the attributes that it gives itself; not what Python names."""
    found = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    for each in node.body:
        if isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            found |= {name.id for to in targets for name in ast.walk(to) if hasattr(name, "id")}
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
            found |= {each.attr} if ast.unparse(each.value) == "self" else set()
    return {name for name in found if not name.startswith("__")}


def too_large(source, path):
    """The file, classes and functions that are above the limits, and their sizes."""
    if (lines := source.count("\n")) > MOST_LINES:
        yield path, lines
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and len(members(node)) > MOST_MEMBERS:
            yield node.name, len(members(node))
        if isinstance(node, ast.FunctionDef) and path not in OPERATORS and node.name not in OPTIONS:
            given = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            made = " ".join(map(ast.unparse, node.decorator_list))
            is_launched = "click." in made or ".jit" in made  # from a command line, or on a GPU
            if len(given) > MOST_PARAMETERS and not is_launched:
                yield node.name, len(given)


def test_no_file_class_or_list_of_parameters_is_too_large():
    folders = (CHECKOUT / name for name in ("triton_ext", "passes", "kernels"))
    files = [path for folder in folders for path in folder.rglob("*.py")]
    assert len(files) > 400
    names = {path: path.relative_to(CHECKOUT).as_posix() for path in files}
    found = [each for path in files for each in too_large(path.read_text("utf-8"), names[path])]
    assert not found


def test_what_is_too_large_is_found():
    declared = "".join(f"    a{i}: int\n" for i in range(13))
    stored = "; ".join(f"self.b{i} = 0" for i in range(12))
    source = f"class Large:\n{declared}    def c(self): {stored}\n    def __eq__(self, other): 0\n"
    assert list(too_large(source, "x.py")) == [("Large", 26)]
    assert not list(too_large(source.replace("a0: int", "a1: int"), "x.py"))
    parameters = ", ".join(f"p{i}" for i in range(13))
    assert list(too_large(f"def f({parameters}): 0", "x.py")) == [("f", 13)]
    assert not list(too_large(f"@gluon.jit\ndef f({parameters}): 0", "x.py"))
    assert list(too_large("x = 0\n" * 601, "x.py")) == [("x.py", 601)]
