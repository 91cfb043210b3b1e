"""Build the wheel: our packages, which are at the top level of a checkout, go into one package `posttrain`.

Everything else about the build is in pyproject.toml. An editable install keeps the folders and names of the checkout.
docs/decisions/0028-names-in-the-wheel.md says why.
"""

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path

from setuptools import __version__, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HOME = "posttrain"
GENERATOR = f"setuptools ({__version__})"
"""In the metadata of the wheel, as setuptools writes it."""


class BuildPackages(build_py):
    """Copy the packages as usual, then move them below `posttrain` and rewrite how they import each other."""

    def run(self) -> None:
        """Build; nothing that an earlier build left in the folder is kept."""
        if self.editable_mode:
            super().run()
            return
        build = Path(self.build_lib)
        shutil.rmtree(build, ignore_errors=True)
        super().run()
        packages = {name.partition(".")[0] for name in self.packages} - {HOME}
        for package in packages:
            (build / package).rename(build / HOME / package)
        for file in (build / HOME).rglob("*.py"):
            file.write_bytes(with_prefix(file.read_bytes(), packages, str(file.relative_to(build))))
        shutil.copytree("recipes", build / HOME / "recipes", ignore=shutil.ignore_patterns("*.json"))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Return the files of the build."""
        if self.editable_mode:
            return super().get_outputs(include_bytecode)
        return [str(file) for file in sorted(Path(self.build_lib).rglob("*")) if file.is_file()]


class BuildWheel(bdist_wheel):
    """Name the one top-level package in the wheel's metadata, where setuptools lists those of the checkout."""

    def write_wheelfile(self, wheelfile_base: str, generator: str = GENERATOR) -> None:
        """Write WHEEL and, unless the install is editable, top_level.txt."""
        super().write_wheelfile(wheelfile_base, generator)
        if "editable_wheel" not in self.distribution.commands:
            Path(wheelfile_base, "top_level.txt").write_text(f"{HOME}\n")


def with_prefix(source: bytes, packages: set[str], name: str) -> bytes:
    """Return a module with `posttrain.` before `packages` in its imports. Raise ValueError for `import learning.x`.

    That form binds the name `learning`, which the rest of the module uses: no insertion keeps its meaning.
    """
    lines = source.splitlines(keepends=True)
    for line, column in sorted(positions(ast.parse(source), lines, packages, name), reverse=True):
        text = lines[line]
        lines[line] = text[:column] + HOME.encode() + b"." + text[column:]
    return b"".join(lines)


def positions(tree: ast.Module, lines: list[bytes], packages: set[str], name: str) -> Iterator[tuple[int, int]]:
    """Yield line and column, both from 0, of every name of a module of `packages` in an import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] in packages:
            column = node.col_offset + len(b"from ")
            if not lines[node.lineno - 1][column:].startswith((node.module or "").encode()):
                raise ValueError(f"{name}:{node.lineno}: write one space between `from` and the module")
            yield node.lineno - 1, column
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] not in packages:
                    continue
                if alias.asname is None:
                    raise ValueError(f"{name}:{node.lineno}: write `from ... import ...` for `import {alias.name}`")
                yield alias.lineno - 1, alias.col_offset


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildPackages, "bdist_wheel": BuildWheel})
