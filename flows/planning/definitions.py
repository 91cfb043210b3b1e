"""The definitions at the top level of a module and the names that each of them uses, from the source text alone.

A statement is a function, a class, an assignment or one name that an import binds. `always` marks a statement with an
effect during import, which counts as soon as its module is used. Names that a function binds itself are left out;
`flows.planning.closure`, which knows the other modules, resolves the remaining names.
"""

import ast
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from flows.planning.name_uses import (
    Function,
    NameUses,
    Scope,
    Use,
    attribute_chain,
    child_nodes,
    find_bound_names,
    is_type_checking,
    list_arguments,
    list_import_bindings,
)
from schemas.errors import PlanError
from schemas.package import parse


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PURE_BUILTINS = _words(
    "abs all any bin bool bytearray bytes chr classmethod complex dict divmod enumerate filter float frozenset hash "
    "hex int isinstance issubclass len list map max min object ord pow property range repr reversed round set slice "
    "sorted staticmethod str sum super tuple type zip"
)
PURE_MODULES = _words(
    "abc array ast cmath collections contextlib contextvars dataclasses datetime decimal enum fractions functools "
    "hashlib itertools keyword math operator pathlib pydantic pydantic_core re statistics string struct textwrap "
    "threading types typing typing_extensions unicodedata zoneinfo"
)
"""Packages whose functions and decorators have no side effects."""
PURE_TORCH = _words("compile device inference_mode no_grad tensor")
PURE_METHODS = _words(
    "absolute copy count decode difference encode endswith format fromkeys get index intersection items join joinpath "
    "keys lower lstrip maketrans partition removeprefix removesuffix replace resolve rpartition rsplit rstrip split "
    "splitlines startswith strip title translate union upper values with_name with_suffix zfill"
)


class Statement(NamedTuple):
    """One statement at the top level of a module; uses are given as texts of `Use`."""

    names: Sequence[str]
    """Names that it binds."""
    digest: str
    """sha256 of its syntax tree without docstrings."""
    uses: Sequence[str] = ()
    imports: Sequence[str] = ()
    """Modules that its code imports late; they are executed even if none of their names is used."""
    literals: Sequence[str] = ()
    """Modules (`python -m module`, `import_module("module")`) and functions (`module:function`) named in strings."""
    always: bool = False
    is_opaque: bool = False
    """Whether its code may reach any name of its module."""
    is_dynamic: bool = False
    """Whether its code may reach any module."""
    has_hooks: bool = False
    """Whether a class in it has hooks, such as `__init_subclass__`, that run for subclasses in other modules."""
    binding: str | None = None
    """Imported module and name, for a name that an import binds."""


@dataclass(frozen=True)
class Facts:
    """The top level of a module."""

    statements: tuple[Statement, ...]
    imports: Sequence[str]
    """Modules that are imported with the module."""
    stars: Sequence[str]
    """Modules of `from module import *`."""

    @cached_property
    def by_name(self) -> dict[str, list[int]]:
        """Indexes of the statements that bind each name."""
        indexes: dict[str, list[int]] = {}
        for index, statement in enumerate(self.statements):
            for name in statement.names:
                indexes.setdefault(name, []).append(index)
        return indexes

    def plain(self) -> list[Any]:
        """Return them as JSON holds them."""
        return [self.statements, self.imports, self.stars]

    @classmethod
    def of_plain(cls, plain: list[Any]) -> "Facts":
        """Return the facts that `plain` returned."""
        statements, imports, stars = plain
        return cls(tuple(Statement._make(fields) for fields in statements), imports, stars)


def read_facts(source: bytes, name: str) -> Facts:
    """Read the facts of a source text; `name` is for messages. Raise PlanError if it is not valid Python."""
    try:
        tree = parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise PlanError(f"{name}: not valid Python: {error}") from error
    return _Reader(tree).facts()


class _Reader:
    """Reads one module."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.scope = Scope(None, ())
        self.aliases: dict[str, Use] = {}
        self.defined = {n.name for n in tree.body if isinstance(n, Function | ast.ClassDef)}
        self.statements: list[Statement] = []
        self.imports: dict[Use, None] = {}
        self.stars: dict[Use, None] = {}

    def facts(self) -> Facts:
        """Read it."""
        body = [node for node in self.tree.body if not _is_docstring(node)]
        for node in body:
            for local, use in list_import_bindings(node):
                self.aliases[local] = use
        for node in body:
            self._statement(node)
        return Facts(tuple(self.statements), [use.text for use in self.imports], [use.text for use in self.stars])

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node)
        elif isinstance(node, ast.If) and is_type_checking(node.test):
            for inner in node.orelse:
                self._statement(inner)
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While | ast.Match):
            for inner in _executed(node):
                if isinstance(inner, ast.Import | ast.ImportFrom) and _is_outside_functions(inner, node):
                    self._import(inner)
            self._add(node, tuple(sorted(find_bound_names([node]).names)), always=not _is_script(node))
        elif isinstance(node, Function | ast.ClassDef):
            self._add(node, (node.name,), always=not self._defines_only(node))
        else:
            self._assignment(node)

    def _assignment(self, node: ast.stmt) -> None:
        targets: Sequence[ast.expr] = ()
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = (node.target,)
        roots = [attribute_chain(target)[0] for target in targets]
        extends = [root for target, root in zip(targets, roots, strict=True) if isinstance(target, ast.Attribute)]
        names = tuple(sorted({*find_bound_names([node]).names, *(root for root in extends if root in self.defined)}))
        plain = all(
            isinstance(target, ast.Name | ast.Tuple | ast.List | ast.Starred)
            or (isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and root in self.defined)
            for target, root in zip(targets, roots, strict=True)
        )
        value = getattr(node, "value", None)
        self._add(node, names, always=not (targets and plain and (value is None or self._is_pure(value))))

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            self._add(node, (), always=True)
            return
        for local, use in list_import_bindings(node):
            self.imports[use] = None
            if local == "*":
                self.stars[use] = None
            text = f"import {use.level} {use.module} {use.name} as {local}"
            digest = hashlib.sha256(text.encode()).hexdigest()
            self.statements.append(Statement((local,), digest, binding=use.text, always=local == "*"))

    def _add(self, node: ast.stmt, names: tuple[str, ...], *, always: bool) -> None:
        collected = NameUses()
        collected.add(node, self.scope)
        collected.is_dynamic |= any(self._full_path(use)[:2] == ("sys", "modules") for use in collected.unsubscripted)
        _strip(node)
        self.statements.append(
            Statement(
                names=names,
                digest=hashlib.sha256(ast.dump(node).encode()).hexdigest(),
                uses=[use.text for use in collected.uses],
                imports=[use.text for use in collected.imports],
                literals=list(collected.literals),
                always=always or "__getattr__" in names,
                is_opaque=collected.is_opaque,
                is_dynamic=collected.is_dynamic,
                has_hooks=collected.has_hooks,
            )
        )

    def _path(self, node: ast.AST) -> tuple[str, ...]:
        """Return the dotted path of a name as Python would import it; empty where it has no name at its root."""
        root, chain = attribute_chain(node)
        return () if root is None else self._full_path(Use(root, chain))

    def _full_path(self, use: Use) -> tuple[str, ...]:
        """Return the dotted path of a used name as Python would import it."""
        source = use if use.module is not None else self.aliases.get(use.name)
        if source is None:
            return (use.name, *use.chain)
        return (*(source.module or "").split("."), *([source.name] if source.name else []), *use.chain)

    def _defines_only(self, node: Function | ast.ClassDef) -> bool:
        """Return whether to define it has no other effect: what it calls meanwhile only returns something."""
        if not all(self._is_pure_decorator(decorator) for decorator in node.decorator_list):
            return False
        if isinstance(node, Function):
            defaults = [d for d in (*node.args.defaults, *node.args.kw_defaults) if d is not None]
            return all(map(self._is_pure, defaults))
        if any(k.arg not in ("frozen", "extra", "total", "metaclass") for k in node.keywords):
            return False
        if not all(map(self._is_pure, node.bases)):
            return False
        return all(self._is_pure_member(inner) for inner in node.body if not _is_docstring(inner))

    def _is_pure_member(self, node: ast.stmt) -> bool:
        if isinstance(node, Function | ast.ClassDef):
            return self._defines_only(node)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            return node.value is None or self._is_pure(node.value)
        return isinstance(node, ast.Pass) or _is_docstring(node)

    def _is_pure_decorator(self, node: ast.expr) -> bool:
        called = node.func if isinstance(node, ast.Call) else node
        root, chain = attribute_chain(called)
        if root is None or (isinstance(node, ast.Call) and not all(map(self._is_pure, list_arguments(node)))):
            return False
        return self._is_pure_name(root, chain) or chain[-1:] in (("setter",), ("getter",), ("deleter",))

    def _is_pure(self, node: ast.expr) -> bool:
        """Return whether to evaluate an expression changes nothing, as far as its calls are known."""
        waiting: list[ast.AST] = [node]
        while waiting:
            part = waiting.pop()
            if isinstance(part, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr):
                return False
            if isinstance(part, ast.Lambda):
                waiting += [d for d in (*part.args.defaults, *part.args.kw_defaults) if d is not None]
                continue
            if isinstance(part, ast.Call) and not self._is_pure_call(part):
                return False
            waiting += child_nodes(part)
        return True

    def _is_pure_call(self, node: ast.Call) -> bool:
        root, chain = attribute_chain(node.func)
        if root is not None and self._is_pure_name(root, chain):
            return True
        if self._path(node.func) == ("ctypes", "CDLL"):  # without a name it opens this process, and loads nothing
            return any(isinstance(name, ast.Constant) and name.value is None for name in node.args[:1])
        return isinstance(node.func, ast.Attribute) and node.func.attr in PURE_METHODS

    def _is_pure_name(self, root: str, chain: tuple[str, ...]) -> bool:
        if root in self.aliases:
            use = self.aliases[root]
            path = (use.module or "").split(".")
            if path == ["torch"] and not use.level:
                return (chain or (use.name,))[-1] in PURE_TORCH
            return not use.level and path[0] in PURE_MODULES
        return root in PURE_BUILTINS and root not in self.defined and not chain


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every node below a tree, but for what only type checkers read."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and is_type_checking(node.test):
            waiting += node.orelse
        else:
            waiting += child_nodes(node)


def _is_outside_functions(wanted: ast.AST, tree: ast.AST) -> bool:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if node is wanted:
            return True
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            waiting += child_nodes(node)
    return False


def _is_script(node: ast.stmt) -> bool:
    """Return whether a statement is for `python -m module` alone; as a program all of a module counts."""
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) == "__name__ == '__main__'"


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _strip(statement: ast.stmt) -> None:
    """Remove docstrings from a statement; they do not count."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ClassDef | Function):
            node.body = [inner for inner in node.body if not _is_docstring(inner)]
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, name, ())
