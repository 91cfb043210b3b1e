"""Field descriptions of models, read from the docstrings under the fields.

pydantic could read them when a class is created (`use_attribute_docstrings`), but that parses every class again and
takes a quarter of the time to check a recipe. They are read only for pages and JSON schemas.
"""

import ast
import inspect
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any, get_args

from pydantic import BaseModel

from schemas.modules import load


def document(models: Iterable[type[BaseModel]]) -> None:
    """Set the descriptions of the fields of models, and of models inside them, to their docstrings."""
    for model in models:
        _document(model)


@cache
def _document(model: type[BaseModel]) -> None:
    for field in model.model_fields.values():
        document(dict.fromkeys(_find_models(field.annotation)))
    texts = {name: text for base in reversed(model.__mro__) for name, text in _read_docstrings(base).items()}
    for name, field in model.model_fields.items():
        if field.description is None:
            field.description = texts.get(name)
    model.model_rebuild(force=True)


@cache
def _read_docstrings(kind: type) -> dict[str, str]:
    """Return the docstrings under the annotated names in a class's own body."""
    if kind is BaseModel or not issubclass(kind, BaseModel):
        return {}
    written = load(kind.__module__).classes.get(kind.__qualname__)
    body = written.body if written is not None else []  # a model that was created by a function has no source
    texts: dict[str, str] = {}
    for field, below in pairwise(body):
        text = below.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else None
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and text is not None:
            texts[field.target.id] = inspect.cleandoc(str(text.value))
    return texts


def _find_models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _find_models(inner)
