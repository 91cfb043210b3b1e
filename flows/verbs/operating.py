"""Keep the house."""

import typer

from flows.verbs.options import console


def doctor() -> None:
    """Say what this machine has and what is missing."""
    from flows.doctor import report_machine

    raise typer.Exit(report_machine(console))
