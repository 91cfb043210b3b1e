"""Files that DVC's commands need besides dvc.yaml: the template of its plot, and a project outside of git."""

from pathlib import Path

from schemas.atomic_write import write_text_atomically

TEMPLATE = Path(__file__).with_name("curves.json")
"""Vega-Lite template of the plot: one panel per figure, one line per stage."""
WITHOUT_GIT = "[core]\n    no_scm = True\n"
"""DVC's configuration outside of a git repository, as `dvc init --no-scm` writes it."""


def complete_project(root: Path) -> None:
    """Write the template that dvc.yaml names, and DVC's configuration outside of git, unless they exist."""
    template, config = root / ".dvc" / "plots" / TEMPLATE.name, root / ".dvc" / "config"
    if not template.exists():
        template.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(template, TEMPLATE.read_text())
    if not config.exists() and not any((folder / ".git").exists() for folder in (root, *root.parents)):
        write_text_atomically(config, WITHOUT_GIT)
