"""Which code a stage really uses: the modules reached by static imports, each with a digest of what it says.

The closure starts at the kind's task and at the functions that its slots name, and follows the imports between our
packages and between the user's own modules. Comments, blank lines, docstrings and imports for type hints do not count.
"""

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel

from schemas.errors import PlanError
from schemas.package import PACKAGES, ROOT, parse
from schemas.use import Use


class Closure:
    """Finds modules of the house, and of the user below `folders` (the recipe's folder, the working directory).

    What it has found it does not look for again: one closure is for one plan.
    """

    def __init__(self, folders: Iterable[Path] = ()):
        self.folders = tuple(dict.fromkeys(Path(f).resolve() for f in folders))
        self._files: dict[str, Path | None] = {}
        self._modules: dict[str, tuple[str, list[str]]] = {}

    def of_modules(self, roots: Iterable[str]) -> dict[str, str]:
        """Module to digest for everything reached from `roots`, in the order of the names. Raises PlanError."""
        found: dict[str, str] = {}
        waiting = list(dict.fromkeys(roots))
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            if name not in self._modules:
                self._modules[name] = self._read(name)
            found[name], imports = self._modules[name]
            waiting += [module for module in imports if module not in found]
        return dict(sorted(found.items()))

    def modules_of(self, use: Use) -> list[str]:
        """Where the function that a slot names is written: a module of its home, or the one of an import path."""
        if ":" in use.use:
            return [use.use.partition(":")[0]]
        family = use.use.rpartition(".")[0]
        names = (f"{use.home}.{use.use}", f"{use.home}.{family}" if family else str(use.home))
        return [name for name in names if self.locate(name) is not None][:1]

    def locate(self, name: str) -> Path | None:
        """File of a dotted module: in the house, else in the user's folders; None when it is of neither."""
        if name not in self._files:
            self._files[name] = self._looked_up(name)
        return self._files[name]

    def _read(self, name: str) -> tuple[str, list[str]]:
        """Digest of a module, and which modules of ours or the user's it imports. Raises PlanError."""
        file = self.locate(name)
        if file is None and (file := _installed(name)) is not None:
            return read_module(file, file.stat().st_mtime_ns, file.stat().st_size)[0], []
        if file is None:
            raise PlanError(f"no module `{name}`: looked in the checkout and in {self._where()}")
        digest, imports = read_module(file, file.stat().st_mtime_ns, file.stat().st_size)
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        return digest, list(self._resolved(imports, package))

    def _looked_up(self, name: str) -> Path | None:
        parts = name.split(".")
        roots = (ROOT,) if parts[0] in PACKAGES else self.folders
        for root in roots:
            base = root.joinpath(*parts)
            for file in (base.with_suffix(".py"), base / "__init__.py"):
                if file.is_file():
                    return file
        return None

    def _resolved(self, imports: tuple[tuple[str, str, int], ...], package: str) -> Iterator[str]:
        """Modules of ours or the user's behind (module, name, level); `from package import module` is that module."""
        for module, name, level in imports:
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - level + 1]) if level else ""
            whole = ".".join(part for part in (base, module) if part)
            for candidate in ([f"{whole}.{name}"] if name else []) + [whole]:
                if candidate and self.locate(candidate) is not None:
                    yield candidate
                    break

    def _where(self) -> str:
        return ", ".join(str(folder) for folder in self.folders) or "no folder of your own"


def _installed(name: str) -> Path | None:
    """File of a module of an installed package: it counts, what it imports is another's."""
    for folder in sys.path:
        base = Path(folder or ".").joinpath(*name.split("."))
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                return file
    return None


def uses(value: object) -> Iterator[Use]:
    """Every slot that is filled inside a stage, depth first."""
    if isinstance(value, Use):
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


@lru_cache(maxsize=4096)
def read_module(file: Path, mtime_ns: int, size: int) -> tuple[str, tuple[tuple[str, str, int], ...]]:
    """Digest and imports (module, name, level) of a source file as it was at that time. Raises PlanError."""
    return read_source(file.read_bytes(), str(file))


@lru_cache(maxsize=4096)
def read_source(source: bytes, name: str) -> tuple[str, tuple[tuple[str, str, int], ...]]:
    """Digest and imports of a source text; the digest is over the syntax tree without docstrings. Raises PlanError."""
    try:
        tree = parse(source)
    except (SyntaxError, ValueError) as error:
        raise PlanError(f"{name}: not valid Python: {error}") from error
    imports = tuple(dict.fromkeys(_imports(tree)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [n for n in node.body if not _is_text(n)]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), imports


def _imports(node: ast.AST) -> Iterator[tuple[str, str, int]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name, "", 0) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from ((node.module or "", alias.name, node.level) for alias in node.names)
    hidden = isinstance(node, ast.If) and _is_type_checking(node.test)
    for child in node.orelse if hidden else ast.iter_child_nodes(node):
        yield from _imports(child)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
