"""Types of options from the text of their annotations, over a fixed list of words; nothing is imported or run."""

import ast
from typing import Annotated, Any, Literal, Optional, Union

from pydantic import Field

from schemas import endpoint, references, schedules, use
from schemas.modules import Module, ModuleError, load

_WORDS: dict[str, Any] = {
    "int": int, "float": float, "bool": bool, "str": str, "None": None, "object": Any, "Any": Any,
    "list": list, "dict": dict, "tuple": tuple, "List": list, "Dict": dict, "Tuple": tuple,
    "Sequence": list, "Mapping": dict, "Number": schedules.Number, "ScheduledFloat": schedules.Number,
    "Endpoint": endpoint.EndpointOption,
}  # fmt: skip
_WORDS |= {n: v for n, v in vars(references).items() if isinstance(v, type) and issubclass(v, references.Reference)}
_WORDS |= {n: v for n, v in vars(use).items() if isinstance(v, type) and issubclass(v, use.Use)}
_WORDS["RewardFunction"] = use.RewardUse
_WORDS |= {n: getattr(schedules, n) for n in ("Linear", "Cosine", "Piecewise", "Ramp")}
_BOUNDS = {"ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length", "pattern", "description"}
MAX_HOPS = 8


class Unknown(Exception):
    """A word of an annotation that the list does not hold."""


def type_of(annotation: ast.expr | None, module: Module) -> Any:
    """The type an annotation means; Any where it cannot be told."""
    if annotation is None:
        return Any
    try:
        return _type(annotation, module, 0)
    except (Unknown, TypeError, ValueError, SyntaxError, ModuleError):
        return Any


def literal(expression: ast.expr, module: Module, hops: int = 0) -> Any:
    """The value of a literal, or of a constant of the module. Raises Unknown."""
    try:
        return ast.literal_eval(expression)
    except (ValueError, TypeError, SyntaxError):
        if not isinstance(expression, ast.Name):
            raise Unknown(ast.unparse(expression)) from None
    found, where = _definition(expression.id, module, hops)
    return literal(found, where, hops + 1)


def _type(node: ast.expr, module: Module, hops: int) -> Any:
    if isinstance(node, ast.Constant):
        if node.value is None:
            return None
        return _type(ast.parse(str(node.value), mode="eval").body, module, hops + 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return Union[_type(node.left, module, hops), _type(node.right, module, hops)]  # noqa: UP007 — computed
    if isinstance(node, ast.Subscript):
        return _subscript(node, module, hops)
    word = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None
    if word is None:
        raise Unknown(ast.unparse(node))
    if word in _WORDS:
        return _WORDS[word]
    found, where = _definition(word, module, hops)
    return _type(found, where, hops + 1)


def _subscript(node: ast.Subscript, module: Module, hops: int) -> Any:
    head = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
    items = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    if head == "Literal":
        return Literal[tuple(literal(i, module) for i in items)]
    if head == "Annotated":
        return Annotated[(_type(items[0], module, hops), *(_field(i, module) for i in items[1:] if _is_field(i)))] \
            if any(map(_is_field, items[1:])) else _type(items[0], module, hops)  # fmt: skip
    inner = [... if isinstance(i, ast.Constant) and i.value is ... else _type(i, module, hops) for i in items]
    if head == "Optional":
        return Optional[inner[0]]  # noqa: UP045 — computed
    if head == "Union":
        return Union[tuple(inner)]  # noqa: UP007 — computed
    origin = _WORDS.get(head)
    if origin not in (list, dict, tuple):
        raise Unknown(head)
    return origin[tuple(inner)] if len(inner) > 1 or origin is tuple else origin[inner[0]]


def _is_field(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "Field"


def _field(node: ast.expr, module: Module) -> Any:
    keywords = node.keywords if isinstance(node, ast.Call) else []
    return Field(**{k.arg: literal(k.value, module) for k in keywords if k.arg in _BOUNDS})


def _definition(word: str, module: Module, hops: int) -> tuple[ast.expr, Module]:
    """The expression that a module, or one it imports from, assigns to a word. Raises Unknown."""
    if hops > MAX_HOPS:
        raise Unknown(word)
    if word in module.values:
        return module.values[word], module
    if word in module.imports:
        source, name = module.imports[word]
        return _definition(name, load(source, (module.file.parent,)), hops + 1)
    raise Unknown(word)
