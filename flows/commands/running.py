"""Commands to run recipes and inspect runs."""

import enum
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from flows.commands.options import (
    AsJson,
    Executor,
    ExecutorChoice,
    Fresh,
    Locked,
    Overrides,
    Profile,
    RecipeFile,
    StandIns,
    Start,
    Tiny,
    To,
    choose_console,
    console,
    warn,
)

if TYPE_CHECKING:
    from flows.runs.launch import Outcome
    from lineage.layout import Layout


def run(
    recipe: RecipeFile,
    profile: Profile = None,
    overrides: Overrides = [],  # noqa: B006
    to: To = [],  # noqa: B006
    start: Start = [],  # noqa: B006
    fresh: Fresh = False,
    locked: Locked = False,
    tiny: Tiny = False,
    stand_ins: StandIns = False,
    promote: Annotated[
        bool, typer.Option("--promote/--no-promote", help="Promote as `promote` of the recipe declares.")
    ] = True,
    executor: Executor = ExecutorChoice.ray,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan; run nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a recipe. Steps whose artifacts exist are not run again; after Ctrl-C the run can be resumed."""
    from flows.planning.recipe_plan import plan_recipe
    from flows.runs import start as run_start
    from lineage.layout import Layout

    layout = Layout.find()
    made = plan_recipe(
        recipe,
        layout,
        profile=profile,
        overrides=overrides,
        to=to,
        start=start,
        fresh=fresh,
        locked=locked,
        tiny=tiny,
        stand_ins=stand_ins,
        warn=warn,
    )
    if dry_run:
        from flows.planning.plan_table import make_plan_table

        print(made.model_dump_json(indent=2)) if as_json else console.print(make_plan_table(made, layout))
        return
    if promote:
        from flows.champions.committed_recipe import warn_of_changes

        warn_of_changes(made, layout, warn)
    else:
        made = made.model_copy(update={"promotion": None})
    ended = run_start.start_run(made, layout, executor.value, choose_console(as_json))
    finish_run(ended, layout, as_json)


def resume(
    run: Annotated[str | None, typer.Argument(help="A run; default: the latest.")] = None,
    budget: Annotated[
        list[str], typer.Option(metavar="KEY=VALUE", help="Another budget, as core_seconds=600; repeatable.")
    ] = [],  # noqa: B006
    executor: Executor = ExecutorChoice.ray,
    as_json: AsJson = False,
) -> None:
    """Resume an interrupted or failed run with its original plan; only its budget may be changed."""
    from flows.runs.start import resume_run
    from lineage.layout import Layout

    layout = Layout.find()
    finish_run(resume_run(run, layout, executor.value, choose_console(as_json), budget), layout, as_json)


def finish_run(ended: "Outcome", layout: "Layout", as_json: bool) -> NoReturn:
    """Exit with a run's code; with --json, first print its steps' states, what they measured, and its cost."""
    if as_json:
        from flows.runs.costs import make_cost_record
        from flows.runs.lookup import list_step_records
        from flows.runs.results import list_result_records

        record = {
            "run": ended.run,
            "exit_code": ended.exit_code,
            "steps": list_step_records(ended.run, layout),
            "results": list_result_records(ended.run, layout),
            "cost": make_cost_record(ended.run, layout),
        }
        print(json.dumps(record, indent=1))
    raise typer.Exit(ended.exit_code)


def approve(
    run: Annotated[str, typer.Argument(help="A run.")],
    step: Annotated[str, typer.Argument(help="The evaluation whose gate waits for a person.")],
    approved: Annotated[
        bool, typer.Option("--approve/--reject", help="Continue as if the gate had passed, or reject.")
    ],
    reason: Annotated[str, typer.Option(help="Reason; recorded in the lineage of later steps.")],
    name: Annotated[
        str | None,
        typer.Option(help="Person who decides, a claim of the account; default: POSTTRAIN_USER, or the account."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Decide about a gate with `on_fail: approve`. A waiting run continues by itself; resume one that has ended."""
    from flows.execution.approval import decide_gates
    from flows.runs.lookup import find_run
    from lineage.layout import Layout

    layout, choice = Layout.find(), "approve" if approved else "reject"
    place = find_run(run, layout)
    records = decide_gates(layout, place, step, choice, reason, name, choose_console(as_json))
    if as_json:
        print(json.dumps(records, indent=1))


def runs(as_json: AsJson = False) -> None:
    """List the runs, the latest first, with recipe and outcome."""
    from flows.runs.lookup import list_run_records, make_runs_table
    from lineage.layout import Layout

    records = list_run_records(Layout.find())
    if as_json:
        print(json.dumps([asdict(record) for record in records], indent=1))
    else:
        console.print(make_runs_table(records))


class CostGroup(enum.StrEnum):
    """What costs are summed by."""

    month = "month"
    recipe = "recipe"


def costs(
    by: Annotated[CostGroup, typer.Option(help="Sum by calendar month (UTC) or by recipe.")] = CostGroup.month,
    as_json: AsJson = False,
) -> None:
    """Show what all runs cost in total: time, cores, GPUs, tokens, and money where recipes have prices."""
    from flows.runs.costs import make_cost_table, sum_run_costs
    from lineage.layout import Layout

    totals = sum_run_costs(Layout.find(), by.value)
    if as_json:
        print(json.dumps([total.to_json() for total in totals], indent=1))
    else:
        console.print(make_cost_table(totals, by.value))


def status(
    run: Annotated[str | None, typer.Argument(help="A run; default: the latest.")] = None, as_json: AsJson = False
) -> None:
    """Show the state of every step of a run."""
    from flows.runs.lookup import list_step_records, make_status_table
    from lineage.layout import Layout

    if as_json:
        print(json.dumps(list_step_records(run, Layout.find()), indent=1))
    else:
        console.print(make_status_table(run, Layout.find()))


def path(
    step: Annotated[str, typer.Argument(help="A finished step of the run, or STEP.OUTPUT.")],
    run: Annotated[str | None, typer.Option(help="A run; default: the latest.")] = None,
) -> None:
    """Print the folder of a step's first output, such as its model; STEP.OUTPUT: of another output."""
    from flows.runs.lookup import find_output
    from lineage.layout import Layout

    print(find_output(step, run, Layout.find()))


def logs(
    step: Annotated[str, typer.Argument(help="A step of the run.")],
    run: Annotated[str | None, typer.Option(help="A run; default: the latest.")] = None,
) -> None:
    """Print the log of a step."""
    from flows.runs.lookup import read_step_log
    from lineage.layout import Layout

    print(read_step_log(step, run, Layout.find()), end="")


def report(
    run: Annotated[str | None, typer.Argument(help="A run; default: the latest.")] = None, as_json: AsJson = False
) -> None:
    """Rewrite the HTML report of a run and print its path; --json: print metrics, scores and gates, write nothing."""
    from flows.runs.lookup import rebuild_report
    from flows.runs.results import list_result_records
    from lineage.layout import Layout

    if as_json:
        print(json.dumps(list_result_records(run, Layout.find()), indent=1))
        return
    print(rebuild_report(run, Layout.find()))
