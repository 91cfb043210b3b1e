"""Python modules as text: what they define and import, read without running them."""

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

HOUSE = Path(__file__).resolve().parent.parent
OURS = ("schemas", "learning", "tasks", "lineage", "flows")
MAX_BYTES = 2_000_000
"""Of one module of ours."""
MAX_FOREIGN_BYTES = 500_000
"""Of one other module, and of all other modules that one recipe names."""
_FOREIGN: ContextVar[dict[Path, int] | None] = ContextVar("foreign modules that were read, with sizes", default=None)
Function = ast.FunctionDef | ast.AsyncFunctionDef


class ModuleError(Exception):
    """The module cannot be found or read; the message says why."""


@dataclass(frozen=True, eq=False)
class Module:
    """The top level of a module; equal texts are read once, so that identity is equality."""

    name: str
    file: Path
    functions: dict[str, Function]
    classes: dict[str, ast.ClassDef]
    values: dict[str, ast.expr]
    imports: dict[str, tuple[str, str]]
    """Local name to (module, name) of `from module import name`."""


def locate(name: str, folders: tuple[Path, ...] = ()) -> Path | None:
    """File of a dotted module: the house first, then `folders`, then Python's path; None when there is none."""
    parts = name.split(".")
    if not all(p.isidentifier() for p in parts):
        return None
    for root in (HOUSE, *folders, *(Path(p or ".") for p in sys.path)):
        base = root.joinpath(*parts)
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if _is_file(file):
                return file
    return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file can have, or a folder that may not be read
        return False


def load(name: str, folders: tuple[Path, ...] = ()) -> Module:
    """Read a module. Raises ModuleError."""
    file = locate(name, folders)
    if file is None:
        raise ModuleError(f"no module `{name}`")
    try:
        _charge(name, file)
        return _parse(name, file, file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ModuleError(f"module `{name}` cannot be read: {error}") from None


@contextmanager
def bounded_reading() -> Iterator[None]:
    """Within it, modules that are not ours are read up to a limit for all of them together."""
    token = _FOREIGN.set({})
    try:
        yield
    finally:
        _FOREIGN.reset(token)


def _charge(name: str, file: Path) -> None:
    """Raises ModuleError for a module that is too large to read, or one that is too much beside the others."""
    size = file.stat().st_size
    read = None if name.partition(".")[0] in OURS else _FOREIGN.get()
    if size > (MAX_BYTES if read is None else MAX_FOREIGN_BYTES):
        raise ModuleError(f"module `{name}` is too large to read ({file})")
    if read is not None:
        read[file] = size
        if sum(read.values()) > MAX_FOREIGN_BYTES:
            raise ModuleError(
                f"module `{name}`: functions are named in {len(read)} modules of "
                f"{sum(read.values())} bytes together, at most {MAX_FOREIGN_BYTES} are read"
            )


@lru_cache(maxsize=512)
def _parse(name: str, file: Path, text: str) -> Module:
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ModuleError(f"module `{name}` is not valid Python: {error}") from None
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


def is_package(name: str) -> bool:
    """Whether a module of the house is a folder."""
    return HOUSE.joinpath(*name.split(".")).is_dir()


def members(package: str) -> list[str]:
    """Public modules of a package of the house, sorted."""
    folder = HOUSE.joinpath(*package.split("."))
    return sorted(p.stem for p in folder.glob("*.py") if not p.stem.startswith("_"))
