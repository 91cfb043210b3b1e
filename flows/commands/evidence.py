"""The command that measures outcomes over seeds."""

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import AsJson, Executor, ExecutorChoice, choose_console


def evidence(
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Papers with a recipe in recipes/outcomes/, or recipe YAMLs.")
    ],
    seeds: Annotated[int, typer.Option(min=3, max=50, help="Number of seeds: 1, 2, 3, ...")] = 5,
    output: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("docs/evidence"),
    verify: Annotated[
        bool, typer.Option("--verify", help="Measure again from an empty state and compare with the results.")
    ] = False,
    executor: Executor = ExecutorChoice.ray,
    as_json: AsJson = False,
) -> None:
    """Compare a method with its comparator over several seeds, as `outcome:` of a recipe declares; write the verdict.

    Seeds that were measured are not run again; after Ctrl-C the same command continues. `--verify` measures the seeds
    in the results, in a temporary folder; exit code 1 if a digit differs.
    """
    from flows.evidence.commands import measure_outcome, verify_outcome

    report = choose_console(as_json)
    if verify:
        same = {name: verify_outcome(name, output, executor.value, report) for name in ids}
        if as_json:
            print(json.dumps([{"id": name, "same_digits": is_same} for name, is_same in same.items()], indent=1))
        raise typer.Exit(0 if all(same.values()) else 1)
    measured = [measure_outcome(name, range(1, seeds + 1), output, executor.value, report) for name in ids]
    if as_json:
        print(json.dumps([each.model_dump(mode="json") for each in measured], indent=1))
