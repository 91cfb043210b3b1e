"""Types of options, read from the text of annotations with a fixed list of names; no code is imported or run."""

import ast
from typing import Annotated, Any, Literal, Optional, Union

from pydantic import Field

from schemas import control, endpoint, number_schedules, question_graph, references, use
from schemas.modules import Module, ModuleError, load

_TYPES: dict[str, object] = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "None": None,
    "object": Any,
    "Any": Any,
    "list": list,
    "dict": dict,
    "tuple": tuple,
    "List": list,
    "Dict": dict,
    "Tuple": tuple,
    "Sequence": list,
    "Mapping": dict,
    "Number": number_schedules.Number,
    "ScheduledFloat": number_schedules.Number,
    "Endpoint": endpoint.EndpointOption,
    "QuestionGraph": question_graph.QuestionGraph,
}
_TYPES |= {n: v for n, v in vars(references).items() if isinstance(v, type) and issubclass(v, references.Reference)}
_TYPES |= {n: v for n, v in vars(use).items() if isinstance(v, type) and issubclass(v, use.Use)}
_TYPES |= {
    f"{n.removesuffix('Use')}Function": v
    for module in (use, control)
    for n, v in vars(module).items()
    if isinstance(v, type) and issubclass(v, use.Use) and n.endswith("Use") and n != "Use"
}
"""Options that name a function get it bound: `WorldFunction` is what `WorldUse` is in a stage."""
_TYPES |= {n: getattr(number_schedules, n) for n in ("Linear", "Cosine", "Piecewise", "Ramp")}
_BOUNDS = {"ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length", "pattern", "description"}
MAX_HOPS = 8


class Unknown(Exception):
    """A name in an annotation that is not in the list."""


def read_type(annotation: ast.expr | None, module: Module) -> Any:
    """Return the type of an annotation, or Any if it cannot be determined."""
    if annotation is None:
        return Any
    try:
        return _resolve_type(annotation, module, 0)
    except (Unknown, TypeError, ValueError, SyntaxError, ModuleError):
        return Any


def read_literal(expression: ast.expr, module: Module, hops: int = 0) -> Any:
    """Return the value of a literal, or of a constant of the module. Raise Unknown."""
    try:
        return ast.literal_eval(expression)
    except (ValueError, TypeError, SyntaxError):
        if not isinstance(expression, ast.Name):
            raise Unknown(ast.unparse(expression)) from None
    expression_there, defined_in = _find_definition(expression.id, module, hops)
    return read_literal(expression_there, defined_in, hops + 1)


def _resolve_type(node: ast.expr, module: Module, hops: int) -> Any:
    if isinstance(node, ast.Constant):
        if node.value is None:
            return None
        return _resolve_type(ast.parse(str(node.value), mode="eval").body, module, hops + 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return Union[_resolve_type(node.left, module, hops), _resolve_type(node.right, module, hops)]  # noqa: UP007 — computed
    if isinstance(node, ast.Subscript):
        return _resolve_subscript(node, module, hops)
    word = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None
    if word is None:
        raise Unknown(ast.unparse(node))
    if word in _TYPES:
        return _TYPES[word]
    definition, defined_in = _find_definition(word, module, hops)
    return _resolve_type(definition, defined_in, hops + 1)


def _resolve_subscript(node: ast.Subscript, module: Module, hops: int) -> Any:
    head = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
    items = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    if head == "Literal":
        return Literal[tuple(read_literal(i, module) for i in items)]
    if head == "Annotated":
        return (
            Annotated[
                (_resolve_type(items[0], module, hops), *(_make_field(i, module) for i in items[1:] if _is_field(i)))
            ]
            if any(map(_is_field, items[1:]))
            else _resolve_type(items[0], module, hops)
        )
    inner = [... if isinstance(i, ast.Constant) and i.value is ... else _resolve_type(i, module, hops) for i in items]
    if head == "Optional":
        return Optional[inner[0]]  # noqa: UP045 — computed
    if head == "Union":
        return Union[tuple(inner)]  # noqa: UP007 — computed
    origin = _TYPES.get(head)
    if origin not in (list, dict, tuple):
        raise Unknown(head)
    return origin[tuple(inner)] if len(inner) > 1 or origin is tuple else origin[inner[0]]


def _is_field(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "Field"


def _make_field(node: ast.expr, module: Module) -> Any:
    keywords = node.keywords if isinstance(node, ast.Call) else []
    return Field(**{k.arg: read_literal(k.value, module) for k in keywords if k.arg in _BOUNDS})


def _find_definition(word: str, module: Module, hops: int) -> tuple[ast.expr, Module]:
    """Return the expression that a module, or one it imports from, assigns to a name. Raise Unknown."""
    if hops > MAX_HOPS:
        raise Unknown(word)
    if word in module.values:
        return module.values[word], module
    if word in module.imports:
        source, name = module.imports[word]
        return _find_definition(name, load(source, (module.file.parent,)), hops + 1)
    raise Unknown(word)
