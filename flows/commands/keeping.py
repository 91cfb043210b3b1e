"""Commands about storage: remove unneeded artifacts, pin them, share them, fetch what a recipe names."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from flows.commands.options import AsJson, Overrides, Profile, RecipeFile, choose_console, console
from schemas.errors import PlanError


def gc(
    last: Annotated[int, typer.Option(min=0, help="Keep what the latest runs used.")] = 10,
    keep: Annotated[
        int, typer.Option(min=0, metavar="K", help="Keep the best K artifacts by a metric, with their runs.")
    ] = 0,
    by: Annotated[str, typer.Option(metavar="METRIC", help="That metric: accuracy, accuracy.MODEL, ...")] = "",
    champions: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Keep N models before each champion; default: all.")
    ] = None,
    give_up: Annotated[
        list[str] | None, typer.Option("--give-up", metavar="RUN", help="A run that will not be resumed; or `all`.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it; without this flag, only list it.")] = False,
    schedule: Annotated[
        str | None,
        typer.Option(metavar="CRON|INTERVAL|off", help="Do this on the server of `up` at these times; `off`: no more."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List what can be removed and the disk space that it frees; keep promoted and pinned artifacts and ancestors."""
    if bool(keep) != bool(by):
        raise PlanError("--keep and --by go together: posttrain gc --keep 3 --by accuracy")
    if schedule is not None:
        if give_up or as_json:
            raise PlanError("--schedule takes no --give-up and no --json: runs are given up by hand")
        console.print(_schedule_gc(schedule, last, keep, by, champions, yes=yes), highlight=False, soft_wrap=True)
        return
    from flows.history.garbage import Policy, collect_garbage
    from lineage.layout import Layout

    collect_garbage(
        Layout.find(), Policy(last, keep, by, champions, tuple(give_up or ())), console, yes=yes, as_json=as_json
    )


def _schedule_gc(text: str, last: int, keep: int, by: str, champions: int | None, *, yes: bool) -> str:
    """Schedule `gc` on Prefect's server; return a line about it. Raise PlanError for other texts than times."""
    from flows.deployments.deploy import connect_server
    from flows.history.garbage import Policy
    from lineage.layout import Layout
    from schemas.checks.schedule import find_cron_problem
    from schemas.schedule import INTERVAL, Schedule

    schedule = None
    if INTERVAL.fullmatch(text):
        schedule = Schedule(interval=text)
    elif text != "off":
        if problem := find_cron_problem(text):
            raise PlanError(f"--schedule: {problem}; write a cron expression as '0 4 * * 0', an interval as 1d, or off")
        schedule = Schedule(cron=text)
    layout = Layout.find()
    connect_server(layout)
    from flows.deployments.clearing import put_schedule  # imports prefect, which reads the variables set above

    return put_schedule(layout, schedule, Policy(last, keep, by, champions), remove=yes)


def pin(
    target: Annotated[
        str | None, typer.Argument(help="A step, key, digest, run or artifact folder; default: list.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the pin: keep it no longer than others.")] = False,
    as_json: AsJson = False,
) -> None:
    """Protect an artifact and its ancestors from `gc`; without a target, list the pinned artifacts."""
    if as_json and target is not None:
        raise PlanError("--json lists the pinned artifacts; leave the target out")
    from flows.history.garbage import pin_target
    from lineage.layout import Layout

    pin_target(Layout.find(), target, console, remove=remove, as_json=as_json)


Remote = Annotated[
    str | None, typer.Option("--remote", help="A remote of DVC by name, a folder, or a URL; default: DVC's default.")
]
Every = Annotated[bool, typer.Option("--all", help="All artifacts.")]


def push(
    target: Annotated[
        str | None, typer.Argument(help="A step, run, key, digest or artifact folder; or `hub`, then MODEL and REPO.")
    ] = None,
    model: Annotated[str | None, typer.Argument(help="With hub: a model, as for `serve`.")] = None,
    repo: Annotated[str | None, typer.Argument(help="With hub: the repository, ORGANISATION/NAME.")] = None,
    every: Every = False,
    remote: Remote = None,
    public: Annotated[bool, typer.Option("--public", help="With hub: create the repository public.")] = False,
    max_shard_size: Annotated[str, typer.Option(help="With hub: largest file of weights.")] = "5GB",
    as_json: AsJson = False,
) -> None:
    """Send artifacts and their ancestors to a DVC remote; `push hub MODEL REPO` uploads one model to Hugging Face.

    A DVC remote is a folder, S3, or another storage that DVC supports. The hub's token is read from HF_TOKEN.
    """
    if model is not None:
        if target != "hub" or repo is None or every or remote:
            raise PlanError(
                "a DVC remote takes one target; to Hugging Face: posttrain push hub MODEL ORGANISATION/NAME"
            )
        from flows.publishing.hub import push_to_hub
        from lineage.layout import Layout

        url = push_to_hub(Layout.find(), model, repo, public=public, max_shard_size=max_shard_size)
        if as_json:
            print(json.dumps({"url": url}, indent=1))
        else:
            console.print(url)
        return
    from flows.history.exchange import describe_moved, push
    from lineage.layout import Layout

    moved = push(Layout.find(), remote, _chosen(target, every), choose_console(as_json))
    if as_json:
        print(json.dumps(describe_moved(moved), indent=1))


def pull(
    target: Annotated[str | None, typer.Argument(help="A step, run, key or digest of the remote.")] = None,
    every: Every = False,
    remote: Remote = None,
    trust: Annotated[bool, typer.Option("--trust", help="Trust the keys that signed the fetched artifacts.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch artifacts and their ancestors from a DVC remote; afterwards their steps are HIT."""
    from flows.history.exchange import describe_moved, pull
    from lineage.layout import Layout

    moved = pull(Layout.find(), remote, _chosen(target, every), choose_console(as_json), trust=trust)
    if as_json:
        print(json.dumps(describe_moved(moved), indent=1))


def fetch(
    recipe: RecipeFile,
    profile: Profile = None,
    overrides: Overrides = [],  # noqa: B006
    update: Annotated[
        bool, typer.Option("--update", help="The newest commits, in place of those that recipe.lock pins.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Download the models and data sets of the hub that a recipe names; no other command does.

    Without a lock the newest commits are fetched, and `posttrain lock` pins them. The token is read from HF_TOKEN.
    """
    from flows.planning.fetching import fetch_hub
    from lineage.layout import Layout
    from schemas.recipe.load import load_recipe

    loaded, fetched, report = load_recipe(recipe, profile=profile, overrides=overrides), [], choose_console(as_json)
    for one in fetch_hub(loaded, recipe, Layout.find(), update=update):
        fetched.append(asdict(one))
        by = ", pinned by the lock" if one.is_pinned else ""
        line = f"{one.reference}: commit {one.commit}{by}, {one.size / 1e6:,.1f} MB"
        report.print(line, highlight=False, markup=False, soft_wrap=True)
    if not fetched:
        report.print(f"{recipe}: names nothing of the hub", highlight=False, markup=False, soft_wrap=True)
    if as_json:
        print(json.dumps(fetched, indent=1))


def _chosen(target: str | None, every: bool) -> str | None:
    if (target is None) is not every:
        raise PlanError("name a step, run or key, or say --all")
    return target
