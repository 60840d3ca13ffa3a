"""JSON documents, checked against the schemas that ship with this package.

Only the keywords of JSON Schema 2020-12 that these schemas use are known, so that reading a layout
needs no other package. In one point this is stricter: 1.0 is no integer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triton_ext.errors import LayoutError

MAX_BYTES = 1 << 24
"""The longest document."""

_TYPES: dict[str, type] = {
    "array": list,
    "integer": int,
    "null": type(None),
    "object": dict,
    "string": str,
}


def read_json(text: str, schema: Path) -> Any:
    """The value of a document, if it is what a schema says. Raises LayoutError: no JSON, too long
    or nested too deeply for Python, or not of the schema; the argument is the path of what is
    wrong, such as ``json.layouts[0].shape``."""
    if len(text) > MAX_BYTES:
        raise LayoutError("json", text[:40], f"must have at most {MAX_BYTES} characters")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as problem:
        rule = f"is no JSON document that can be read: {problem}"
        raise LayoutError("json", text[:40], rule) from None
    check(value, json.loads(schema.read_text(encoding="utf-8")), "json")
    return value


def check(value: Any, schema: Mapping[str, Any], path: str) -> None:
    """Raise LayoutError unless a value is what a schema says."""

    def demand(holds: bool, rule: str) -> None:
        if not holds:
            raise LayoutError(path, value, rule)

    if "type" in schema:
        names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        is_boolean = isinstance(value, bool)
        fits = not is_boolean and any(isinstance(value, _TYPES[name]) for name in names)
        demand(fits, f"must be of type {' or '.join(names)}")
    legal = [schema["const"]] if "const" in schema else schema.get("enum")
    if legal is not None:
        equal = any(type(value) is type(each) and value == each for each in legal)
        demand(equal, f"must be {' or '.join(map(json.dumps, legal))}")
    if "oneOf" in schema:
        _check_one_of(value, schema["oneOf"], path)
    if isinstance(value, int):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        demand(low <= value <= high, f"must lie in [{low}, {high}]")
    elif isinstance(value, str):
        demand(len(value) <= schema.get("maxLength", len(value)), "is too long")
        pattern = schema.get("pattern", "")
        demand(re.search(pattern, value) is not None, f"must match {pattern}")
    elif isinstance(value, list):
        low, high = schema.get("minItems", 0), schema.get("maxItems", len(value))
        demand(low <= len(value) <= high, f"must have {low} to {high} items")
        for index, item in enumerate(value):
            check(item, schema.get("items", {}), f"{path}[{index}]")
    elif isinstance(value, dict):
        own = schema.get("properties", {})
        for name in schema.get("required", ()):
            demand(name in value, f"must have {name!r}")
        if not schema.get("additionalProperties", True):
            demand(value.keys() <= own.keys(), f"must have no more than {list(own)}")
        for name in value.keys() & own.keys():
            check(value[name], own[name], f"{path}.{name}")


def _check_one_of(value: Any, choices: list[Mapping[str, Any]], path: str) -> None:
    problem: LayoutError | None = None
    for choice in choices:
        try:
            check(value, choice, path)
        except LayoutError as error:
            problem = error
        else:
            return
    if problem is not None:  # all fail: what the last says is told
        raise problem
