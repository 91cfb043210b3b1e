"""Field descriptions of models, read from the docstrings under the fields.

pydantic would read them whenever a class is created (`use_attribute_docstrings`), which parses every class again and
takes a quarter of the time to check a recipe. Only pages and schemas show them, so they are read only there.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any, get_args

from pydantic import BaseModel


def document(models: Iterable[type[BaseModel]]) -> None:
    """Set the descriptions of the fields of models, and of models inside them, to their docstrings."""
    for model in models:
        _document(model)


@cache
def _document(model: type[BaseModel]) -> None:
    for field in model.model_fields.values():
        document(dict.fromkeys(_models_in(field.annotation)))
    known = {name: text for base in reversed(model.__mro__) for name, text in _docstrings(base).items()}
    for name, field in model.model_fields.items():
        if field.description is None:
            field.description = known.get(name)
    model.model_rebuild(force=True)


@cache
def _docstrings(kind: type) -> dict[str, str]:
    """Return the docstrings under the annotated names in a class's own body."""
    if kind is BaseModel or not issubclass(kind, BaseModel):
        return {}
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):  # a model that was created by a function has no source
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found: dict[str, str] = {}
    for field, below in pairwise(body):
        text = below.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else None
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and text is not None:
            found[field.target.id] = inspect.cleandoc(str(text.value))
    return found


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
