"""What the text of a module defines at its top level, and what every definition names: facts of the text alone.

A statement is a function, a class, an assignment or one name that an import binds. `always` marks a statement that has
an effect when the module is imported, so that it counts as soon as the module is. Names that a function binds itself
are left out; what a name stands for is resolved by `flows.planning.closure`, which knows the other modules.
"""

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from schemas.errors import PlanError
from schemas.package import parse

Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*", re.ASCII)
"""How a function of any module is named by a text: `package.module:function`."""
OPAQUE = frozenset({"globals", "eval", "exec", "__import__"})
"""Built-in functions through which code may reach any name of its module."""
OPAQUE_IF_BARE = frozenset({"vars", "dir", "locals"})


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
"""Packages whose functions and decorators change nothing but what they return."""
PURE_TORCH = _words("compile device inference_mode no_grad tensor")
PURE_METHODS = _words(
    "absolute copy count decode difference encode endswith format fromkeys get index intersection items join joinpath "
    "keys lower lstrip maketrans partition removeprefix removesuffix replace resolve rpartition rsplit rstrip split "
    "splitlines startswith strip title translate union upper values with_name with_suffix zfill"
)


class Use(NamedTuple):
    """A name that a statement uses: of its own module, or (with `module`) of another one that it imports late."""

    name: str
    chain: tuple[str, ...] = ()
    """Attributes that are taken of it, in order."""
    module: str | None = None
    level: int = 0
    """Dots before the module of a relative import."""

    @property
    def text(self) -> str:
        """It as one text: `name.attribute`, with `..module:` before it."""
        path = ".".join((self.name, *self.chain))
        return path if self.module is None else f"{'.' * self.level}{self.module}:{path}"

    @classmethod
    def of(cls, text: str) -> "Use":
        """Return what a text stands for."""
        module, colon, path = text.rpartition(":")
        name, *chain = path.split(".")
        level = len(module) - len(module.lstrip("."))
        return cls(name, tuple(chain), module[level:] if colon else None, level)


class Statement(NamedTuple):
    """One statement of the top level of a module; uses are texts of `Use`."""

    names: Sequence[str]
    """What it binds."""
    digest: str
    """sha256 over its syntax without docstrings."""
    uses: Sequence[str] = ()
    imports: Sequence[str] = ()
    """Modules that its code imports late: they run, whether or not a name of theirs is used."""
    literals: Sequence[str] = ()
    """Modules (`python -m module`, `import_module("module")`) and functions (`module:function`) named by a text."""
    always: bool = False
    is_opaque: bool = False
    """Its code may reach any name of its module."""
    is_dynamic: bool = False
    """Its code may reach any module."""
    has_hooks: bool = False
    """A class in it may learn of its subclasses, wherever they are."""
    binding: str | None = None
    """What it imports, for the binding of an import."""


@dataclass(frozen=True)
class Facts:
    """The top level of a module."""

    statements: tuple[Statement, ...]
    imports: Sequence[str]
    """What is imported when the module is."""
    stars: Sequence[str]
    """Modules of `from module import *`."""

    @cached_property
    def by_name(self) -> dict[str, list[int]]:
        """Statements that bind a name, as indexes."""
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
    """Read the facts of a source text; `name` is that of messages. Raises PlanError for what is no Python."""
    try:
        tree = parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise PlanError(f"{name}: not valid Python: {error}") from error
    return _Reader(tree).facts()


class _Scope:
    """The names that one function, class, lambda or comprehension binds."""

    def __init__(self, parent: "_Scope | None", body: Sequence[ast.AST], parameters: Iterable[str] = ()) -> None:
        bound = _bound(body)
        self.parent, self.is_class = parent, False
        self.names = {*parameters, *bound.names} - bound.elsewhere
        self.elsewhere = bound.elsewhere
        self.imports = bound.imports


class _Uses:
    """Collects what one statement uses."""

    def __init__(self) -> None:
        self.uses: dict[Use, None] = {}
        self.imports: dict[Use, None] = {}
        self.literals: dict[str, None] = {}
        self.is_opaque = self.is_dynamic = self.has_hooks = False

    def add(self, node: ast.AST, scope: _Scope) -> None:
        """Collect from a node that is evaluated in `scope`."""
        if isinstance(node, Function):
            self._function(node, scope)
        elif isinstance(node, ast.Lambda):
            self._defaults(node.args, scope)
            self.add(node.body, _Scope(scope, [node.body], _parameters(node.args)))
        elif isinstance(node, ast.ClassDef):
            self._class(node, scope)
        elif isinstance(node, Comprehension):
            self._comprehension(node, scope)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._late_import(node, scope)
        elif isinstance(node, ast.Name | ast.Attribute):
            self._name(node, scope)
        elif isinstance(node, ast.Call):
            self._call(node, scope)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and IMPORT_PATH.fullmatch(node.value):
                self.literals[node.value] = None
        elif isinstance(node, ast.List | ast.Tuple):
            self._command(node.elts)
            self.add_all(node.elts, scope)
        elif isinstance(node, ast.AnnAssign):
            self._annotated(node, scope)
        elif not (isinstance(node, ast.If) and _is_type_checking(node.test)):
            self.add_all(ast.iter_child_nodes(node), scope)
        else:
            self.add_all(node.orelse, scope)

    def add_all(self, nodes: Iterable[ast.AST], scope: _Scope) -> None:
        """Collect from several nodes."""
        for node in nodes:
            self.add(node, scope)

    def _function(self, node: Function, scope: _Scope) -> None:
        self.add_all(node.decorator_list, scope)
        self._defaults(node.args, scope)
        hinted = [*node.args.kwonlyargs]
        if node.decorator_list:  # a decorator may read every annotation; without one only options are read
            spec = node.args
            hinted += [*spec.posonlyargs, *spec.args, *(a for a in (spec.vararg, spec.kwarg) if a is not None)]
            self._annotation(node.returns, scope)
        for argument in hinted:
            self._annotation(argument.annotation, scope)
        inner = _Scope(scope, node.body, _parameters(node.args))
        for name in sorted(inner.elsewhere):
            self.uses[Use(name)] = None
        self.add_all(node.body, inner)

    def _defaults(self, spec: ast.arguments, scope: _Scope) -> None:
        self.add_all([d for d in (*spec.defaults, *spec.kw_defaults) if d is not None], scope)

    def _class(self, node: ast.ClassDef, scope: _Scope) -> None:
        self.add_all([*node.decorator_list, *node.bases, *(k.value for k in node.keywords)], scope)
        self.has_hooks |= any(k.arg == "metaclass" for k in node.keywords)
        self.has_hooks |= any(isinstance(n, Function) and n.name == "__init_subclass__" for n in node.body)
        inner = _Scope(scope, node.body)
        inner.is_class = True
        self.add_all(node.body, inner)

    def _comprehension(self, node: Comprehension, scope: _Scope) -> None:
        self.add(node.generators[0].iter, scope)
        inner = _Scope(scope, [generator.target for generator in node.generators])
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self.add_all(parts, inner)
        for position, generator in enumerate(node.generators):
            self.add_all([generator.target, *generator.ifs, *([generator.iter] if position else [])], inner)

    def _late_import(self, node: ast.Import | ast.ImportFrom, scope: _Scope) -> None:
        for local, use in _bindings(node):
            self.imports[use] = None
            if local == "*":
                self.is_opaque = True
            is_local = local in scope.names and not scope.is_class
            if scope.parent is not None and not is_local and " " not in local:
                self.uses[use] = None  # bound where it can be read from elsewhere

    def _annotated(self, node: ast.AnnAssign, scope: _Scope) -> None:
        in_function = scope.parent is not None and not scope.is_class
        if not in_function:  # Python does not evaluate the annotations of a function's own variables
            self._annotation(node.annotation, scope)
        self.add_all([n for n in (node.target, node.value) if n is not None], scope)

    def _annotation(self, node: ast.expr | None, scope: _Scope) -> None:
        """Collect from an annotation; texts in it are read as the annotations that they hold."""
        for part in ast.walk(node) if node is not None else ():
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                try:
                    self.add(ast.parse(part.value, mode="eval").body, scope)
                except (SyntaxError, ValueError, RecursionError):
                    continue
        if node is not None:
            self.add(node, scope)

    def _name(self, node: ast.Name | ast.Attribute, scope: _Scope) -> None:
        root, chain = _chain(node)
        self.has_hooks |= "__subclasses__" in chain
        self.is_opaque |= "__globals__" in chain
        if root is not None:
            self._use(root, chain, scope)
            return
        while isinstance(node, ast.Attribute):
            node = node.value  # pyright: ignore[reportAssignmentType]  # any expression
        self.add(node, scope)

    def _use(self, root: str, chain: tuple[str, ...], scope: _Scope) -> None:
        holder: _Scope | None = scope
        while holder is not None:
            for late in holder.imports.get(root, ()):
                self.uses[late._replace(chain=chain)] = None
            if root in holder.names and not holder.is_class:
                return
            holder = holder.parent
        self.uses[Use(root, chain)] = None

    def _command(self, words: Sequence[ast.expr]) -> None:
        """Collect the module of `python -m module`."""
        for flag, word in pairwise(words):
            if isinstance(flag, ast.Constant) and flag.value == "-m" and _is_text([word]):
                self.literals[ast.literal_eval(word)] = None

    def _call(self, node: ast.Call, scope: _Scope) -> None:
        root, chain = _chain(node.func)
        word = chain[-1] if chain else root
        if word in ("eval", "exec") and chain:
            word = None  # a method of that name
        if word in OPAQUE or (word in OPAQUE_IF_BARE and not chain and not node.args):
            self.is_opaque = True
        if word in ("import_module", "run_module", "run_path", "__import__") and not _is_text(node.args[:1]):
            self.is_dynamic = True
        elif word in ("import_module", "run_module"):
            self.literals[ast.literal_eval(node.args[0])] = None
        self._command(node.args)
        self.add_all(ast.iter_child_nodes(node), scope)


class _Reader:
    """Reads one module."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.scope = _Scope(None, ())
        self.aliases: dict[str, Use] = {}
        self.defined = {n.name for n in tree.body if isinstance(n, Function | ast.ClassDef)}
        self.statements: list[Statement] = []
        self.imports: dict[Use, None] = {}
        self.stars: dict[Use, None] = {}

    def facts(self) -> Facts:
        """Read it."""
        body = [node for node in self.tree.body if not _is_docstring(node)]
        for node in body:
            for local, use in _bindings(node):
                self.aliases[local] = use
        for node in body:
            self._statement(node)
        return Facts(tuple(self.statements), [use.text for use in self.imports], [use.text for use in self.stars])

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node)
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            for inner in node.orelse:
                self._statement(inner)
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While | ast.Match):
            for inner in _executed(node):
                if isinstance(inner, ast.Import | ast.ImportFrom) and _is_outside_functions(inner, node):
                    self._import(inner)
            self._add(node, tuple(sorted(_bound([node]).names)), always=not _is_script(node))
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
        roots = [_chain(target)[0] for target in targets]
        extends = [root for target, root in zip(targets, roots, strict=True) if isinstance(target, ast.Attribute)]
        names = tuple(sorted({*_bound([node]).names, *(root for root in extends if root in self.defined)}))
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
        for local, use in _bindings(node):
            self.imports[use] = None
            if local == "*":
                self.stars[use] = None
            said = f"import {use.level} {use.module} {use.name} as {local}"
            digest = hashlib.sha256(said.encode()).hexdigest()
            self.statements.append(Statement((local,), digest, binding=use.text, always=local == "*"))

    def _add(self, node: ast.stmt, names: tuple[str, ...], *, always: bool) -> None:
        collected = _Uses()
        collected.add(node, self.scope)
        collected.is_dynamic |= self._reads_any_module(node)
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

    def _reads_any_module(self, tree: ast.AST) -> bool:
        """Return whether code looks at `sys.modules`, but for one entry of it by a fixed name."""
        nodes = list(ast.walk(tree))
        fixed = {id(n.value) for n in nodes if isinstance(n, ast.Subscript) and _is_text([n.slice])}
        return any(id(node) not in fixed and self._path(node)[:2] == ("sys", "modules") for node in nodes)

    def _path(self, node: ast.AST) -> tuple[str, ...]:
        """Return the dotted path of a name as Python would import it; empty where it has no name at its root."""
        root, chain = _chain(node)
        use = self.aliases.get(root) if root is not None else None
        if use is None:
            return (root, *chain) if root is not None else ()
        return (*(use.module or "").split("."), *([use.name] if use.name else []), *chain)

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
        root, chain = _chain(called)
        if root is None or (isinstance(node, ast.Call) and not all(map(self._is_pure, _arguments(node)))):
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
            waiting += ast.iter_child_nodes(part)
        return True

    def _is_pure_call(self, node: ast.Call) -> bool:
        root, chain = _chain(node.func)
        if root is not None and self._is_pure_name(root, chain):
            return True
        return isinstance(node.func, ast.Attribute) and node.func.attr in PURE_METHODS

    def _is_pure_name(self, root: str, chain: tuple[str, ...]) -> bool:
        if root in self.aliases:
            use = self.aliases[root]
            path = (use.module or "").split(".")
            if path == ["torch"] and not use.level:
                return (chain or (use.name,))[-1] in PURE_TORCH
            return not use.level and path[0] in PURE_MODULES
        return root in PURE_BUILTINS and root not in self.defined and not chain


def _arguments(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(k.value for k in node.keywords)]


def _chain(node: ast.AST) -> tuple[str | None, tuple[str, ...]]:
    """Return the name at the root of `a.b.c` and the attributes; None for the root where it is no name."""
    chain: list[str] = []
    while isinstance(node, ast.Attribute):
        chain.append(node.attr)
        node = node.value
    return (node.id if isinstance(node, ast.Name) else None), tuple(reversed(chain))


def _bindings(node: ast.AST) -> Iterator[tuple[str, Use]]:
    """Yield (local name, what it is) for every name that an import binds."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname:
                yield alias.asname, Use("", (), alias.name)
            else:
                yield alias.name.partition(".")[0], Use("", (), alias.name.partition(".")[0])
                if "." in alias.name:
                    yield f"import {alias.name}", Use("", (), alias.name)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            name = "" if alias.name == "*" else alias.name
            yield alias.asname or alias.name, Use(name, (), node.module or "", node.level)


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every node below a tree, but for what only type checkers read."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def _is_outside_functions(wanted: ast.AST, tree: ast.AST) -> bool:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if node is wanted:
            return True
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)
    return False


@dataclass
class _Bound:
    """What statements bind in their own scope."""

    names: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)
    """Names declared global or nonlocal."""
    imports: dict[str, list[Use]] = field(default_factory=dict)


def _bound(body: Sequence[ast.AST]) -> _Bound:
    """Return what statements bind in their own scope."""
    bound = _Bound()
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Function | ast.ClassDef):
            bound.names.add(node.name)
            continue
        if isinstance(node, ast.Lambda | Comprehension):
            continue
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for local, use in _bindings(node):
                if " " not in local and local != "*":
                    bound.names.add(local)
                    bound.imports.setdefault(local, []).append(use)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            bound.elsewhere |= set(node.names)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            bound.names.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            bound.names.add(node.rest)
        waiting += ast.iter_child_nodes(node)
    return bound


def _parameters(spec: ast.arguments) -> list[str]:
    every = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *(a for a in (spec.vararg, spec.kwarg) if a is not None)]
    return [argument.arg for argument in every]


def _is_text(arguments: Sequence[ast.expr]) -> bool:
    return all(isinstance(a, ast.Constant) and isinstance(a.value, str) for a in arguments) and bool(arguments)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _is_script(node: ast.stmt) -> bool:
    """Return whether a statement is for `python -m module` alone; as a program all of a module counts."""
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) == "__name__ == '__main__'"


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _strip(tree: ast.stmt) -> None:
    """Remove docstrings from a tree; they do not count."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [inner for inner in node.body if not _is_docstring(inner)]
