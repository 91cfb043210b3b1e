"""Python modules as text: what they define and import, read without running them."""

import ast
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

HOUSE = Path(__file__).resolve().parent.parent
MAX_BYTES = 2_000_000
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
            if file.is_file():
                return file
    return None


def load(name: str, folders: tuple[Path, ...] = ()) -> Module:
    """Read a module. Raises ModuleError."""
    file = locate(name, folders)
    if file is None:
        raise ModuleError(f"no module `{name}`")
    try:
        if file.stat().st_size > MAX_BYTES:
            raise ModuleError(f"module `{name}` is too large to read ({file})")
        return _parse(name, file, file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ModuleError(f"module `{name}` cannot be read: {error}") from None


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
