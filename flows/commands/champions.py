"""Commands about champions: promote a model that passed its gates, roll back, list, serve."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from flows.commands.options import AsJson, console
from schemas.errors import PlanError

Name = Annotated[str, typer.Argument(metavar="NAME", help="A registered model.")]


def promote(
    model: Annotated[str, typer.Argument(help="A step or key of a finished model.")],
    gate: Annotated[str, typer.Option(help="A step or key of an evaluation whose gates the model passed.")],
    name: Annotated[str, typer.Option(help="The registered model whose champion it becomes.")],
    approve_override: Annotated[
        bool, typer.Option("--approve-override", help="Approve a gate that differs from the committed recipe's.")
    ] = False,
    why: Annotated[str, typer.Option(help="With --approve-override: the reason, recorded in the history.")] = "",
    who: Annotated[
        str | None,
        typer.Option(help="Person who answers, a claim of the account; default: POSTTRAIN_USER, or the account."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a model champion; an earlier evaluation whose gates it passed is required."""
    from flows.champions.promotion import promote_step
    from lineage.layout import Layout

    verdict = promote_step(Layout.find(), model, gate, name, approve=approve_override, who=who, why=why)
    if as_json:
        print(json.dumps(asdict(verdict), indent=1))
    else:
        console.print(verdict.text, highlight=False, markup=False, soft_wrap=True)


def rollback(
    name: Name,
    to: Annotated[int | None, typer.Option(min=1, help="A version that was champion; default: the one before.")] = None,
    why: Annotated[str, typer.Option(help="Reason, recorded in the history.")] = "",
    as_json: AsJson = False,
) -> None:
    """Undo the latest promotion: the previous champion becomes champion again."""
    from lineage.layout import Layout
    from lineage.registry.rollback import roll_back

    before, after = roll_back(Layout.find(), name, to, why)
    if as_json:
        print(
            json.dumps({"name": name, "before": before.version, "version": after.version, "key": after.key}, indent=1)
        )
        return
    message = f"champion of {name}: version {before.version} → version {after.version} ({after.key[:12]})"
    console.print(message, highlight=False, markup=False, soft_wrap=True)


def champions(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show how its champion moved.")] = None,
    as_json: AsJson = False,
    restore: Annotated[bool, typer.Option("--restore", help="Restore MLflow from the audit log.")] = False,
) -> None:
    """Show every champion with time and gate of its promotion, or the history of one; exit code 1 on an alarm."""
    from flows.champions.tables import show_champions, show_history
    from lineage.layout import Layout

    layout = Layout.find()
    if restore:
        from lineage.registry.rollback import restore_registry as write_again

        if name is None:
            raise PlanError("--restore needs a name: posttrain champions NAME --restore")
        for line in write_again(layout, name):
            console.print(f"put right: {line}", highlight=False, markup=False, soft_wrap=True)
    code = show_champions(layout, console, as_json) if name is None else show_history(layout, name, console, as_json)
    if code:
        raise typer.Exit(code)
