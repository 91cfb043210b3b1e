"""Commands to write recipes and inspect their plans."""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import (
    AsJson,
    Examples,
    Fresh,
    GpuMemory,
    Locked,
    Overrides,
    Profile,
    PromptLength,
    RecipeFile,
    StandIns,
    Start,
    Tiny,
    To,
    console,
    warn,
)
from schemas.errors import PosttrainError, RecipeError


def init(
    path: Annotated[
        Path, typer.Argument(help="File to write, or a folder, which is made and gets recipe.yaml.")
    ] = Path("recipe.yaml"),
    like: Annotated[
        str, typer.Option(metavar="RECIPE", help="A shipped recipe to copy: quickstart, papers/remax, ...")
    ] = "starter",
) -> None:
    """Write a starter recipe, and next to it the JSON Schema for completion and validation in editors."""
    from flows.commands.starter import list_missing_sources, place_recipe, write_recipe

    path = place_recipe(path)
    written = ", ".join(str(file) for file in write_recipe(path, like))
    for name in list_missing_sources(path):
        warn(f"{path} reads path:{name}, which is not copied; name a file of your own")
    print(f"wrote {written}; next: posttrain validate {path}")


def ls(as_json: AsJson = False) -> None:
    """List the recipes in `recipes/` of the current folder, or the shipped ones if there is no such folder."""
    from flows.commands.recipes import list_recipe_records, make_recipe_table
    from lineage.layout import Layout
    from schemas.package import ROOT

    own = Layout.find().root / "recipes"
    records = list_recipe_records(own if own.is_dir() else ROOT / "recipes")
    if as_json:
        print(json.dumps([asdict(record) for record in records], indent=1))
    else:
        console.print(make_recipe_table(records))


def validate(
    recipes: Annotated[list[Path], typer.Argument(metavar="RECIPE...", help="Recipe YAMLs.")],
    profile: Profile = None,
    overrides: Overrides = [],  # noqa: B006 — typer copies it
    tiny: Tiny = False,
    examples: Examples = 0,
    stand_ins: StandIns = False,
    as_json: AsJson = False,
) -> None:
    """Validate recipes: keys, values, slots, references, ports, data. Errors in a recipe have file:line:column."""
    from flows.planning.preflight import find_missing_packages, find_problems, sketch_plan
    from flows.steps.machine_limits import find_machine_problems
    from lineage.layout import Layout
    from lineage.reports.formatting import format_count
    from schemas.recipe.load import load_recipe

    failures, records = [], []
    for path in recipes:
        warnings: list[str] = []
        note = warnings.append if as_json else warn
        record: dict[str, object] = {"file": str(path), "ok": True, "warnings": warnings, "problems": []}
        records.append(record)
        try:
            recipe = load_recipe(path, profile=profile, overrides=overrides)
            if tiny or stand_ins:
                from flows.planning.tiny import derive_tiny

                top = derive_tiny(recipe, Layout.find(), stand_ins=stand_ins)
                recipe = load_recipe(path, profile=profile, overrides=overrides, top=top)
            for problem in recipe.warnings:
                note(str(problem))
            if problems := find_problems(recipe, Layout.find(), note):
                raise RecipeError(problems)
            for problem in find_machine_problems(recipe):
                note(str(problem))
            for text in find_missing_packages(recipe):
                note(f"{path}:1:1: {text}; on this machine `run` refuses it")
            record["steps"] = len(recipe.stages)
            if not as_json:
                print(f"{path}: ok, {format_count(len(recipe.stages), 'step')}")
            if examples:
                from flows.planning.rendered_examples import render_examples  # transformers comes with it

                shown = list(render_examples(sketch_plan(recipe), Layout.find(), examples))
                record["examples"] = shown
                for line in () if as_json else shown:
                    print(line)
        except PosttrainError as error:
            failures.append(error)
            listed = [asdict(problem) for problem in error.problems] if isinstance(error, RecipeError) else []
            record |= {"ok": False, "problems": listed or [{"message": str(error)}]}
            if not as_json:
                print(error, file=sys.stderr)
    if as_json:
        print(json.dumps(records, indent=1))
    if failures:
        raise typer.Exit(3)


def show(
    recipe: RecipeFile,
    profile: Profile = None,
    overrides: Overrides = [],  # noqa: B006
    full: Annotated[
        bool, typer.Option("--full/--minimal", help="All keys, or those that differ from defaults.")
    ] = False,
) -> None:
    """Print a recipe as plain stages: what extends, profiles, variables and presets come to. The keys are the same."""
    from schemas.recipe.load import load_recipe
    from schemas.recipe.show import show_full, show_minimal

    made = load_recipe(recipe, profile=profile, overrides=overrides)
    print(show_full(made) if full else show_minimal(made), end="")


def plan(
    recipe: RecipeFile,
    profile: Profile = None,
    overrides: Overrides = [],  # noqa: B006
    to: To = [],  # noqa: B006
    start: Start = [],  # noqa: B006
    fresh: Fresh = False,
    locked: Locked = False,
    tiny: Tiny = False,
    stand_ins: StandIns = False,
    dvc: Annotated[bool, typer.Option("--dvc", help="Also write dvc.yaml for this recipe.")] = False,
    as_json: AsJson = False,
    memory: Annotated[bool, typer.Option("--memory", help="Show the memory that every step needs instead.")] = False,
    gpu_memory: GpuMemory = None,
    prompt_length: PromptLength = None,
    examples: Examples = 0,
) -> None:
    """Show what a run would do: HIT or MISS for every step, with the first difference from an earlier run."""
    from flows.commands.recipes import describe_due_times
    from flows.planning.data_sources import describe_sources, look_at_sources, show_examples
    from flows.planning.plan_table import make_plan_table
    from flows.planning.recipe_plan import plan_recipe
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
    if dvc:
        from lineage.exchange.dvc_files import write_pipeline

        write_pipeline(layout, made)
    if memory:
        from flows.planning.memory import show_memory

        show_memory(made, layout, console, gpu=gpu_memory, prompt=prompt_length, as_json=as_json)
    elif as_json:
        print(made.model_dump_json(indent=2))
    else:
        seen = look_at_sources(made, layout, examples)
        console.print(make_plan_table(made, layout))
        rendered: Iterable[str] = ()
        if examples:
            from flows.planning.rendered_examples import render_examples  # transformers comes with it

            rendered = render_examples(made, layout, examples)
        for line in (*describe_sources(seen), *show_examples(seen), *rendered):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        if due := describe_due_times(made.schedule):
            console.print(f"once deployed it runs by itself: {due}", markup=False, highlight=False, soft_wrap=True)


def why(
    words: Annotated[
        list[str], typer.Argument(metavar="[RECIPE] STEP", help="A step; the recipe may be left out: the latest run's.")
    ],
    profile: Profile = None,
    overrides: Overrides = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Explain why a step would run again, field by field, or name the run that its artifact comes from."""
    from flows.planning.plan_table import explain_step
    from flows.planning.recipe_plan import plan_recipe
    from flows.runs.lookup import find_step
    from lineage.layout import Layout

    layout = Layout.find()
    recipe, step, profile, overrides = find_step(words, profile, overrides, layout)
    made = plan_recipe(recipe, layout, profile=profile, overrides=overrides)
    explanation = explain_step(made, step, layout)
    if as_json:
        print(json.dumps(asdict(explanation), indent=1))
    else:
        console.print(str(explanation), highlight=False, markup=False, soft_wrap=True)


def check_reward(
    recipe: RecipeFile,
    step: Annotated[str, typer.Argument(help="A step with rewards.")],
    tests: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML list of {prompt, answer, good: [...], bad: [...]}.")
    ] = None,
    size: Annotated[int, typer.Option(min=1, help="Without --tests: number of the step's own problems.")] = 3,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Also score about so many completions of the step's model."),
    ] = None,
    profile: Profile = None,
    overrides: Overrides = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Score good and bad answers, and texts that cheat, with the rewards of a step; 1 if one scores as a good answer.

    Without --tests the answers of the step's own problems are the good ones.
    """
    from flows.planning.reward_tests import count_failures, score_reward_tests
    from flows.planning.reward_tests_table import make_distribution_table, make_reward_table
    from lineage.layout import Layout
    from schemas.recipe.load import load_recipe

    made = load_recipe(recipe, profile=profile, overrides=overrides)
    results = score_reward_tests(made, step, tests, size, Layout.find())
    rewards = None
    if samples is not None:
        from flows.planning.reward_samples import sample_rewards  # its compilation and models take a second to import

        rewards = sample_rewards(made, step, samples, Layout.find())
    if as_json:
        tested = [result.to_json() for result in results]
        print(json.dumps(tested if rewards is None else {"tests": tested, "samples": rewards.to_json()}, indent=1))
    else:
        console.print(make_reward_table(step, results))
        if rewards is not None:
            console.print(make_distribution_table(step, rewards))
    if count_failures(results):
        raise typer.Exit(1)


def schema(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/recipes.md instead.")] = False,
) -> None:
    """Print the JSON Schema of recipes, for editors."""
    if markdown:
        from schemas.pages.reference_page import make_reference_page

        print(make_reference_page(), end="")
    else:
        from schemas.pages.editor_schema import make_editor_schema

        print(json.dumps(make_editor_schema(), indent=2))
