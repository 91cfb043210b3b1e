"""Which code a step really uses: the definitions reached by names, across our modules and the user's.

The closure starts at the kind's task and at the functions that its slots name, and follows every name that their
syntax uses to where it is defined, through imports at the top of a module and inside of functions. Comments, blank
lines, docstrings and imports for type hints do not count. Where a name cannot be followed, more counts: the module as
a whole, or all that is imported (docs/decisions/0027-keys-by-definition.md). `flows.planning.boundaries` lists the
modules that are not entered.
"""

import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel

from flows.planning.boundaries import find_boundary
from flows.planning.definitions import Facts, Use
from flows.planning.facts_cache import FactsCache
from schemas.errors import PlanError
from schemas.package import PACKAGES, ROOT
from schemas.use import Use as Slot

IMPORTED, WHOLE, OPEN = -1, -2, -3
"""Of a module in place of a statement: it is imported; all of it counts; so does all that it imports."""
Node = tuple[str, int]
"""A module, and the index of a statement in it or one of the three above."""


class Closure:
    """Finds definitions of the house, and of the user below `folders` (the recipe's folder, the working directory).

    What it has found it does not look for again: one closure is for one plan.
    """

    def __init__(self, folders: Iterable[Path] = (), known: FactsCache | None = None):
        self.known = FactsCache() if known is None else known
        self.folders = tuple(dict.fromkeys(Path(f).resolve() for f in folders))
        self._files: dict[str, Path | None] = {}
        self._facts: dict[str, Facts] = {}
        self._edges: dict[Node, tuple[Node, ...]] = {}
        self._digests: dict[tuple[str, tuple[int, ...]], str] = {}

    def of(self, roots: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Return module to digest of all that is reached from definitions (module, name), sorted. Raise PlanError."""
        reached = self.reached(roots)
        return {module: self._digest(module, indexes) for module, indexes in sorted(reached.items())}

    def reached(self, roots: Iterable[tuple[str, str]]) -> dict[str, tuple[int, ...]]:
        """Return module to the indexes of its statements that are reached. Raise PlanError."""
        seen = self._walk([node for module, name in roots for node in self._root(module, name)])
        if any(index >= 0 and self._facts[module].statements[index].has_hooks for module, index in seen):
            # a class with hooks for subclasses: those in every imported module count
            seen = self._walk([*seen, *((module, WHOLE) for module, index in seen if index == IMPORTED)])
        reached: dict[str, list[int]] = {}
        for module, index in sorted(seen):
            if index >= 0 and find_boundary(module) is None:
                reached.setdefault(module, []).append(index)
        return {module: tuple(indexes) for module, indexes in reached.items()}

    def facts(self, name: str) -> Facts:
        """Return the facts of a module of ours or the user's. Raise PlanError when there is none."""
        if name not in self._facts:
            file = self.locate(name)
            if file is None:
                raise PlanError(f"no module `{name}`: looked in the checkout and in {self._where()}")
            self._facts[name] = read_module(file, self.known)
        return self._facts[name]

    def locate(self, name: str) -> Path | None:
        """Return the file of a dotted module: in the house, else in the user's folders; None when it is of neither."""
        if name not in self._files:
            self._files[name] = self._looked_up(name)
        return self._files[name]

    def _looked_up(self, name: str) -> Path | None:
        parts = name.split(".")
        roots = (ROOT,) if parts[0] in PACKAGES else self.folders
        for root in roots:
            base = root.joinpath(*parts)
            for file in (base.with_suffix(".py"), base / "__init__.py"):
                if file.is_file():
                    return file
        return None

    def _root(self, module: str, name: str) -> list[Node]:
        """Return where to start for a definition; a module of an installed package counts, what it names does not.

        Raise PlanError for one behind a boundary: a recipe cannot name what its key would leave out.
        """
        if (boundary := find_boundary(module)) is not None:
            raise PlanError(
                f"`{module}:{name}` cannot be named: keys leave `{boundary.module}` out ({boundary.reason.value}); "
                "name a function of your own"
            )
        if self.locate(module) is None and (file := _installed(module)) is not None:
            self._facts[module] = read_module(file, self.known)
            self._files[module] = None
            indexes = range(len(self._facts[module].statements))
            self._edges |= {(module, index): () for index in indexes}
            return [(module, index) for index in indexes]
        return [(module, IMPORTED), *(self._named(module, name, ()) or [(module, WHOLE)])]

    def _walk(self, starts: Iterable[Node]) -> set[Node]:
        waiting = list(starts)
        seen = set(waiting)
        while waiting:
            node = waiting.pop()
            if node not in self._edges:
                self._edges[node] = tuple(dict.fromkeys(self._next(node)))
            for following in self._edges[node]:
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)
        return seen

    def _next(self, node: Node) -> Iterator[Node]:
        """Yield what follows from the fact that a statement, or a module, is reached."""
        module, index = node
        if find_boundary(module) is not None:
            return
        facts = self.facts(module)
        if index == IMPORTED:
            yield from ((module, i) for i, statement in enumerate(facts.statements) if statement.always)
            for text in facts.imports:
                yield from self._imported(module, Use.of(text))
        elif index == WHOLE:
            yield module, IMPORTED
            yield from ((module, i) for i in range(len(facts.statements)))
            for statement in facts.statements:
                if statement.binding is not None:
                    yield from self._target(module, Use.of(statement.binding), None)
        elif index == OPEN:
            yield module, WHOLE
            late = [text for statement in facts.statements for text in statement.imports]
            for text in (*facts.imports, *late):
                yield from ((name, OPEN) for name, _ in self._imported(module, Use.of(text)))
        else:
            yield module, IMPORTED
            yield from self._of_statement(module, index)

    def _of_statement(self, module: str, index: int) -> Iterator[Node]:
        statement = self.facts(module).statements[index]
        if statement.binding is not None:
            yield from self._imported(module, Use.of(statement.binding))
            return
        for text in statement.imports:
            yield from self._imported(module, Use.of(text))
        for use in map(Use.of, statement.uses):
            if use.module is not None:
                yield from self._target(module, use, use.chain)
            else:
                yield from self._named(module, use.name, use.chain)
        for text in statement.literals:
            name, _, function = text.partition(":")
            if self.locate(name) is not None:
                yield from ((function and self._named(name, function, ())) or [(name, WHOLE)])
        if statement.is_opaque:
            yield module, WHOLE
        if statement.is_dynamic and module.partition(".")[0] not in PACKAGES:
            yield module, OPEN  # ours load nothing by a computed name but slots, which are roots (a test lists them)

    def _named(self, module: str, name: str, chain: tuple[str, ...]) -> list[Node]:
        """Return what a name of a module leads to; nothing for a built-in name."""
        facts = self.facts(module)
        nodes: list[Node] = []
        for index in facts.by_name.get(name, ()):
            nodes.append((module, index))
            binding = facts.statements[index].binding
            if binding is not None:
                nodes += self._target(module, Use.of(binding), chain)
        if not nodes and name not in facts.by_name:
            nodes = [(target, WHOLE) for star in facts.stars for target in self._modules(module, Use.of(star))]
        return nodes

    def _target(self, module: str, use: Use, chain: tuple[str, ...] | None) -> list[Node]:
        """Return what an import leads to, with the attributes taken of it; a `chain` of None: whatever they are."""
        base = self._base(module, use)
        if use.name and self.locate(base) is not None and use.name in self.facts(base).by_name:
            return [(base, IMPORTED), *self._named(base, use.name, chain or ())]
        whole = f"{base}.{use.name}" if use.name else base
        if chain is None:
            return []
        nodes: list[Node] = []
        for position in range(len(chain) + 1):
            inner = ".".join((whole, *chain[:position]))
            if self.locate(inner) is None:
                continue
            rest = chain[position:]
            if rest and self.locate(f"{inner}.{rest[0]}") is not None and rest[0] not in self.facts(inner).by_name:
                continue  # a module of a package
            nodes.append((inner, IMPORTED))
            nodes += (self._named(inner, rest[0], rest[1:]) if rest else []) or [(inner, WHOLE)]
        if not nodes and use.name and self.locate(base) is not None:
            nodes = [(base, WHOLE)]  # a name that the module does not bind in sight
        return nodes

    def _imported(self, module: str, use: Use) -> Iterator[Node]:
        """Yield the modules that an import runs, packages around them included."""
        for name in self._modules(module, use):
            parts = name.split(".")
            for count in range(1, len(parts) + 1):
                around = ".".join(parts[:count])
                if self.locate(around) is not None:
                    yield around, IMPORTED

    def _modules(self, module: str, use: Use) -> list[str]:
        """Return the modules of ours or the user's behind an import: `from package import module` is both."""
        base = self._base(module, use)
        names = [base, f"{base}.{use.name}"] if use.name else [base]
        return [name for name in names if self.locate(name) is not None]

    def _base(self, module: str, use: Use) -> str:
        """Return the full name of the module that an import names, which may be relative to `module`."""
        if not use.level:
            return use.module or ""
        file = self.locate(module)
        package = module if file is not None and file.name == "__init__.py" else module.rpartition(".")[0]
        parents = package.split(".")
        return ".".join([*parents[: len(parents) - use.level + 1], *([use.module] if use.module else [])])

    def _digest(self, module: str, indexes: tuple[int, ...]) -> str:
        """Return the digest over some statements of a module, in the order of its text."""
        if (module, indexes) not in self._digests:
            statements = self._facts[module].statements
            text = "\n".join(statements[index].digest for index in indexes)
            digest = self._digests[module, indexes] = hashlib.sha256(text.encode()).hexdigest()
            parts = {name: statements[index].digest for index in indexes for name in statements[index].names or ("…",)}
            self.known.remember(digest, parts)
        return self._digests[module, indexes]

    def _where(self) -> str:
        return ", ".join(str(folder) for folder in self.folders) or "no folder of your own"


def _installed(name: str) -> Path | None:
    """Return the file of a module of an installed package."""
    for folder in sys.path:
        base = Path(folder or ".").joinpath(*name.split("."))
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                return file
    return None


def uses(value: object) -> Iterator[Slot]:
    """Yield every slot that is filled inside a stage, depth first."""
    if isinstance(value, Slot):
        yield value
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from uses(getattr(value, name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from uses(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from uses(item)


def read_module(file: Path, known: FactsCache) -> Facts:
    """Return the facts of a source file as it is now. Raise PlanError."""
    return known.facts(file.read_bytes(), str(file))
