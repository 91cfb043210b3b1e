"""Champions: promote through a gate, go back, see who is champion and why, serve one."""

from typing import Annotated

import typer

from flows.verbs.options import AsJson, console

Name = Annotated[str, typer.Argument(metavar="NAME", help="A registered model.")]


def promote(
    model: Annotated[str, typer.Argument(help="A step or key of a model that was made.")],
    gate: Annotated[str, typer.Option(help="A step or key of an evaluation whose gates the model passed.")],
    name: Annotated[str, typer.Option(help="The registered model whose champion it becomes.")],
) -> None:
    """Make a model champion that an earlier evaluation has proven; there is no way without one."""
    from flows.promotion import promote_step
    from lineage.layout import Layout

    console.print(promote_step(Layout.find(), model, gate, name), highlight=False, markup=False, soft_wrap=True)


def rollback(
    name: Name,
    to: Annotated[int | None, typer.Option(min=1, help="A version that was champion; default: the one before.")] = None,
    why: Annotated[str, typer.Option(help="Kept in the history.")] = "",
) -> None:
    """Take the latest promotion back: the champion before it is champion again."""
    from lineage.layout import Layout
    from lineage.rollback import rollback

    before, after = rollback(Layout.find(), name, to, why)
    said = f"champion of {name}: version {before.version} → version {after.version} ({after.key[:12]})"
    console.print(said, highlight=False, markup=False, soft_wrap=True)


def champions(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show how its champion moved.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show every champion, since when and by which gate, or the history of one."""
    from flows.champion_tables import show_champions, show_history
    from lineage.layout import Layout

    layout = Layout.find()
    if name is None:
        show_champions(layout, console, as_json)
    else:
        show_history(layout, name, console, as_json)
