"""Names that a syntax tree uses, binds and imports, each resolved in the scope where it is evaluated."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, get_args

Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*", re.ASCII)
"""How a function of any module is named by a text: `package.module:function`."""
OPAQUE = frozenset({"globals", "eval", "exec", "__import__"})
"""Built-in functions through which code may reach any name of its module."""
NO_NAMES = frozenset({"ctx", "op", "ops", "id", "attr", "level", "kind", "type_comment", "type_ignores"})
"""Fields of syntax nodes that hold no names, or texts and numbers alone."""
OPAQUE_IF_BARE = frozenset({"vars", "dir", "locals"})


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


class Scope:
    """The names that one function, class, lambda or comprehension binds."""

    def __init__(self, parent: "Scope | None", body: Sequence[ast.AST], parameters: Iterable[str] = ()) -> None:
        bound = find_bound_names(body)
        self.parent, self.is_class = parent, False
        self.names = {*parameters, *bound.names} - bound.elsewhere
        self.elsewhere = bound.elsewhere
        self.imports = bound.imports


class NameUses:
    """Collects what one statement uses."""

    def __init__(self) -> None:
        self.uses: dict[Use, None] = {}
        self.imports: dict[Use, None] = {}
        self.literals: dict[str, None] = {}
        self.unsubscripted: set[Use] = set()
        """Uses that are more than one entry by a fixed key, `name["key"]`."""
        self.is_opaque = self.is_dynamic = self.has_hooks = False

    def add(self, node: ast.AST, scope: Scope) -> None:
        """Collect from a node that is evaluated in `scope`."""
        collect = _COLLECTORS.get(type(node))
        if collect is None:
            self.add_all(child_nodes(node), scope)
        else:
            collect(self, node, scope)

    def add_all(self, nodes: Iterable[ast.AST], scope: Scope) -> None:
        """Collect from several nodes."""
        for node in nodes:
            self.add(node, scope)

    def _lambda(self, node: ast.Lambda, scope: Scope) -> None:
        self._defaults(node.args, scope)
        self.add(node.body, Scope(scope, [node.body], _parameters(node.args)))

    def _constant(self, node: ast.Constant, scope: Scope) -> None:
        if isinstance(node.value, str) and IMPORT_PATH.fullmatch(node.value):
            self.literals[node.value] = None

    def _elements(self, node: ast.List | ast.Tuple, scope: Scope) -> None:
        self._command(node.elts)
        self.add_all(node.elts, scope)

    def _if(self, node: ast.If, scope: Scope) -> None:
        self.add_all(node.orelse if is_type_checking(node.test) else child_nodes(node), scope)

    def _subscript(self, node: ast.Subscript, scope: Scope) -> None:
        if isinstance(node.value, ast.Name | ast.Attribute) and is_text([node.slice]):
            self._name(node.value, scope, is_entry=True)
        else:
            self.add(node.value, scope)
        self.add(node.slice, scope)

    def _function(self, node: Function, scope: Scope) -> None:
        self.add_all(node.decorator_list, scope)
        self._defaults(node.args, scope)
        hinted = [*node.args.kwonlyargs]
        if node.decorator_list:  # a decorator may read every annotation; without one only options are read
            spec = node.args
            hinted += [*spec.posonlyargs, *spec.args, *(a for a in (spec.vararg, spec.kwarg) if a is not None)]
            self._annotation(node.returns, scope)
        for argument in hinted:
            self._annotation(argument.annotation, scope)
        inner = Scope(scope, node.body, _parameters(node.args))
        for name in sorted(inner.elsewhere):
            self.uses[Use(name)] = None
        self.add_all(node.body, inner)

    def _defaults(self, spec: ast.arguments, scope: Scope) -> None:
        self.add_all([d for d in (*spec.defaults, *spec.kw_defaults) if d is not None], scope)

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        self.add_all([*node.decorator_list, *node.bases, *(k.value for k in node.keywords)], scope)
        self.has_hooks |= any(k.arg == "metaclass" for k in node.keywords)
        self.has_hooks |= any(isinstance(n, Function) and n.name == "__init_subclass__" for n in node.body)
        inner = Scope(scope, node.body)
        inner.is_class = True
        self.add_all(node.body, inner)

    def _comprehension(self, node: Comprehension, scope: Scope) -> None:
        self.add(node.generators[0].iter, scope)
        inner = Scope(scope, [generator.target for generator in node.generators])
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self.add_all(parts, inner)
        for position, generator in enumerate(node.generators):
            self.add_all([generator.target, *generator.ifs, *([generator.iter] if position else [])], inner)

    def _late_import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        for local, use in list_import_bindings(node):
            self.imports[use] = None
            if local == "*":
                self.is_opaque = True
            is_local = local in scope.names and not scope.is_class
            if scope.parent is not None and not is_local and " " not in local:
                self.uses[use] = None  # bound where it can be read from elsewhere

    def _annotated(self, node: ast.AnnAssign, scope: Scope) -> None:
        in_function = scope.parent is not None and not scope.is_class
        if not in_function:  # Python does not evaluate the annotations of a function's own variables
            self._annotation(node.annotation, scope)
        self.add_all([n for n in (node.target, node.value) if n is not None], scope)

    def _annotation(self, node: ast.expr | None, scope: Scope) -> None:
        """Collect from an annotation; texts in it are read as the annotations that they hold."""
        for part in ast.walk(node) if node is not None else ():
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                try:
                    self.add(ast.parse(part.value, mode="eval").body, scope)
                except (SyntaxError, ValueError, RecursionError):
                    continue
        if node is not None:
            self.add(node, scope)

    def _name(self, node: ast.Name | ast.Attribute, scope: Scope, *, is_entry: bool = False) -> None:
        root, chain = attribute_chain(node)
        self.has_hooks |= "__subclasses__" in chain
        self.is_opaque |= "__globals__" in chain
        if root is not None:
            uses = _resolve(root, chain, scope)
            self.uses |= dict.fromkeys(uses)
            if not is_entry:
                self.unsubscripted |= set(uses)
            return
        while isinstance(node, ast.Attribute):
            node = node.value  # pyright: ignore[reportAssignmentType]  # any expression
        self.add(node, scope)

    def _command(self, words: Sequence[ast.expr]) -> None:
        """Collect the module of `python -m module`."""
        for flag, word in pairwise(words):
            if isinstance(flag, ast.Constant) and flag.value == "-m" and is_text([word]):
                self.literals[ast.literal_eval(word)] = None

    def _call(self, node: ast.Call, scope: Scope) -> None:
        root, chain = attribute_chain(node.func)
        word = chain[-1] if chain else root
        if word in ("eval", "exec") and chain:
            word = None  # a method of that name
        if word in OPAQUE or (word in OPAQUE_IF_BARE and not chain and not node.args):
            self.is_opaque = True
        if word in ("import_module", "run_module", "run_path", "__import__") and not is_text(node.args[:1]):
            self.is_dynamic = True
        elif word in ("import_module", "run_module"):
            self.literals[ast.literal_eval(node.args[0])] = None
        self._command(node.args)
        self.add_all(child_nodes(node), scope)


_COLLECTORS: dict[type[ast.AST], Callable[[NameUses, Any, Scope], None]] = {
    ast.FunctionDef: NameUses._function,
    ast.AsyncFunctionDef: NameUses._function,
    ast.Lambda: NameUses._lambda,
    ast.ClassDef: NameUses._class,
    **dict.fromkeys(get_args(Comprehension), NameUses._comprehension),
    ast.Import: NameUses._late_import,
    ast.ImportFrom: NameUses._late_import,
    ast.Name: NameUses._name,
    ast.Attribute: NameUses._name,
    ast.Subscript: NameUses._subscript,
    ast.Call: NameUses._call,
    ast.Constant: NameUses._constant,
    ast.List: NameUses._elements,
    ast.Tuple: NameUses._elements,
    ast.AnnAssign: NameUses._annotated,
    ast.If: NameUses._if,
}
"""How the names of a node are collected, by the node's type; of other types, from the nodes below it."""


def _resolve(root: str, chain: tuple[str, ...], scope: Scope) -> list[Use]:
    """Return the uses of a name in a scope: late imports that bind it, else or also the name of the module."""
    uses: list[Use] = []
    holder: Scope | None = scope
    while holder is not None:
        uses += (late._replace(chain=chain) for late in holder.imports.get(root, ()))
        if root in holder.names and not holder.is_class:
            return uses
        holder = holder.parent
    return [*uses, Use(root, chain)]


@cache
def _node_fields(kind: type[ast.AST]) -> tuple[str, ...]:
    """Return the fields of a type of node that hold nodes with names, in order."""
    return tuple(name for name in kind._fields if name not in NO_NAMES)


def child_nodes(node: ast.AST) -> list[ast.AST]:
    """Return the nodes directly below a node, in order, as `ast.iter_child_nodes`; without operators and contexts."""
    children: list[ast.AST] = []
    for name in _node_fields(type(node)):
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            children.append(value)
        elif isinstance(value, list):
            children += [item for item in value if isinstance(item, ast.AST)]
    return children


def list_arguments(node: ast.Call) -> list[ast.expr]:
    """Return the values of all arguments of a call."""
    return [*node.args, *(k.value for k in node.keywords)]


def attribute_chain(node: ast.AST) -> tuple[str | None, tuple[str, ...]]:
    """Return the name at the root of `a.b.c` and the attributes; None for the root where it is no name."""
    chain: list[str] = []
    while isinstance(node, ast.Attribute):
        chain.append(node.attr)
        node = node.value
    return (node.id if isinstance(node, ast.Name) else None), tuple(reversed(chain))


def list_import_bindings(node: ast.AST) -> Iterator[tuple[str, Use]]:
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


@dataclass
class _Bound:
    """What statements bind in their own scope."""

    names: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)
    """Names declared global or nonlocal."""
    imports: dict[str, list[Use]] = field(default_factory=dict)


def find_bound_names(body: Sequence[ast.AST]) -> _Bound:
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
            for local, use in list_import_bindings(node):
                if " " not in local and local != "*":
                    bound.names.add(local)
                    bound.imports.setdefault(local, []).append(use)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            bound.elsewhere |= set(node.names)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            bound.names.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            bound.names.add(node.rest)
        waiting += child_nodes(node)
    return bound


def _parameters(spec: ast.arguments) -> list[str]:
    every = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *(a for a in (spec.vararg, spec.kwarg) if a is not None)]
    return [argument.arg for argument in every]


def is_text(arguments: Sequence[ast.expr]) -> bool:
    """Return whether there are arguments and all are literal texts."""
    return all(isinstance(a, ast.Constant) and isinstance(a.value, str) for a in arguments) and bool(arguments)


def is_type_checking(test: ast.expr) -> bool:
    """Return whether a condition is `TYPE_CHECKING`."""
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )
