"""Python modules as text: what they define and import, read without running them."""

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from schemas.package import PACKAGES, ROOT, parse

MAX_BYTES = 2_000_000
"""Largest size of a module of posttrain."""
MAX_FOREIGN_BYTES = 500_000
"""Largest size of any other module, and of all others together in one recipe."""
DEFINITION = re.compile(r"^(?:async +)?(?:def|class) +(\w+)", re.MULTILINE)
Function = ast.FunctionDef | ast.AsyncFunctionDef


class ModuleError(Exception):
    """The module cannot be found or read; the message says why."""


@dataclass(frozen=True, eq=False)
class Module:
    """The top level of a module; equal texts are parsed once, so that equal modules are identical."""

    name: str
    file: Path
    functions: dict[str, Function]
    classes: dict[str, ast.ClassDef]
    values: dict[str, ast.expr]
    imports: dict[str, tuple[str, str]]
    """Local name to (module, name) of `from module import name`."""


def locate(name: str, folders: tuple[Path, ...] = ()) -> Path | None:
    """Return the file of a module: from posttrain, else `folders`, else Python's path; None if there is none."""
    parts = name.split(".")
    if not all(p.isidentifier() for p in parts):
        return None
    for root in (ROOT, *folders, *(Path(p or ".") for p in sys.path)):
        base = root.joinpath(*parts)
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if _is_file(file):
                return file
    return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is invalid for a file, or an unreadable folder
        return False


@dataclass(frozen=True)
class _Reading:
    """The modules read for one recipe so far, by name and folders, and the sizes of those outside posttrain."""

    modules: dict[tuple[str, tuple[Path, ...]], Module] = field(default_factory=dict)
    foreign: dict[Path, int] = field(default_factory=dict)
    indexes: dict[str, list[tuple[str, frozenset[str]]]] = field(default_factory=dict)
    """Names that the modules of a home define."""


_READING: ContextVar[_Reading | None] = ContextVar("modules read for the recipe", default=None)


@contextmanager
def bounded_reading() -> Iterator[None]:
    """Read each module at most once inside the block, and limit the total size of those outside posttrain."""
    token = _READING.set(_Reading())
    try:
        yield
    finally:
        _READING.reset(token)


def load(name: str, folders: tuple[Path, ...] = ()) -> Module:
    """Return a module, read from its file. Raise ModuleError."""
    reading = _READING.get()
    if reading is None:
        return _read(name, folders, {})
    if (name, folders) not in reading.modules:
        reading.modules[name, folders] = _read(name, folders, reading.foreign)
    return reading.modules[name, folders]


def _read(name: str, folders: tuple[Path, ...], foreign: dict[Path, int]) -> Module:
    file = locate(name, folders)
    if file is None:
        raise ModuleError(f"no module `{name}`")
    try:
        _charge(name, file, foreign)
        return _parse(name, file, file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ModuleError(f"module `{name}` cannot be read: {error}") from None


def _charge(name: str, file: Path, foreign: dict[Path, int]) -> None:
    """Raise ModuleError if a module is too large, alone or together with the others."""
    size, is_own = file.stat().st_size, name.partition(".")[0] in PACKAGES
    if size > (MAX_BYTES if is_own else MAX_FOREIGN_BYTES):
        raise ModuleError(f"module `{name}` is too large to read ({file})")
    if not is_own:
        foreign[file] = size
        if (together := sum(foreign.values())) > MAX_FOREIGN_BYTES:
            total = f"the recipe names functions in {len(foreign)} modules of {together} bytes in total"
            raise ModuleError(f"module `{name}`: {total}; at most {MAX_FOREIGN_BYTES} are read")


@lru_cache(maxsize=4096)
def _parse(name: str, file: Path, text: str) -> Module:
    try:
        body = parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f"{file.name}:{getattr(error, 'lineno', None) or 1}"
        raise ModuleError(f"module `{name}` is not valid Python: {where}: {getattr(error, 'msg', error)}") from None
    functions = {n.name: n for n in body if isinstance(n, Function)}
    classes = {n.name: n for n in body if isinstance(n, ast.ClassDef)}
    values = {t.id: n.value for n in body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    imports = {}
    for node in body:
        if isinstance(node, ast.ImportFrom):
            package = name if file.name == "__init__.py" else name.rpartition(".")[0]
            for _ in range(node.level - 1):
                package = package.rpartition(".")[0]
            source = f"{package}.{node.module}".strip(".") if node.level else node.module or ""
            imports |= {a.asname or a.name: (source, a.name) for a in node.names}
    return Module(name, file, functions, classes, values, imports)


def list_modules(home: str) -> tuple[str, ...]:
    """Return the public modules of a home in posttrain: the module itself, or all modules below a package."""
    base = ROOT.joinpath(*home.split("."))
    if not base.is_dir():
        return (home,) if base.with_suffix(".py").is_file() else ()
    places = sorted(file.relative_to(base).with_suffix("").parts for file in base.rglob("*.py"))
    return tuple(".".join((home, *parts)) for parts in places if not any(part.startswith("_") for part in parts))


def find_defining_modules(home: str, name: str) -> list[str]:
    """Return the modules of a home that define a function or class of that name at their top level."""
    reading = _READING.get()
    indexes = reading.indexes if reading is not None else {}
    if home not in indexes:
        files = [(module, locate(module)) for module in list_modules(home)]
        indexes[home] = [(m, _defined(file, file.stat().st_mtime_ns)) for m, file in files if file is not None]
    return [module for module, names in indexes[home] if name in names]


@lru_cache(maxsize=4096)
def _defined(file: Path, changed: int) -> frozenset[str]:
    """Return the names of the functions and classes at the top level of a file as it was at that time."""
    return frozenset(DEFINITION.findall(file.read_text(encoding="utf-8")))
