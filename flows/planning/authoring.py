"""For the author of a recipe, before a run: the plan as a table, why a step would run, a recipe to start from."""

from pathlib import Path

from rich.table import Table
from rich.text import Text

from flows.planning.difference import differences
from flows.planning.estimate import Estimate, Outlook, cost_lines, excess
from flows.planning.explain import explain_plan
from flows.planning.facts_cache import FactsCache
from flows.running.runlog import read_plan
from flows.runs import chosen_run
from lineage.history import latest
from lineage.layout import Layout
from lineage.report import duration
from schemas.errors import PlanError, RecipeError
from schemas.plan import Plan
from schemas.recipe import load_recipe
from schemas.schedule import Schedule
from schemas.source import read_source
from schemas.suggestions import suggest
from schemas.tree import shown

STARTER = """\
# A recipe to start from. Check it: posttrain validate {name}; run it: posttrain run {name}
schema_version: 1
name: {stem}
seed: 7
stages:
  base:
    kind: init
    config:
      model_type: qwen3
      hidden_size: 96
      intermediate_size: 288
      num_hidden_layers: 4
      num_attention_heads: 4
      num_key_value_heads: 4
      head_dim: 24
    max_length: 64
  lessons:
    kind: synthesize
    problems: [{{use: reasoning_gym, family: spell_backward, split: train, size: 2000, style: short}}]
    teacher: answer
  clean:
    kind: curate
    data: lessons
  cold_start:
    kind: sft
    model: base
    data: clean
    learning_rate: 2e-3
    max_steps: 200
    max_length: 64
  report:
    kind: evaluate
    models: {{base: base, cold_start: cold_start}}
    tasks: [{{use: reasoning_gym, family: spell_backward, split: test, size: 400, style: short}}]
    max_completion_length: 16
"""


def plan_table(plan: Plan, layout: Layout) -> Table:
    """One row per step: HIT or MISS and why, what it reads, what it needs, the time it will take or that it saves."""
    from flows.planning.power import condition, gate_lines

    outlook = Outlook(plan, layout)
    verdicts, found = outlook.verdicts, outlook.estimates
    hits = sum(verdict == "HIT" for verdict, _ in verdicts.values())
    lines = [f"{hits} of {len(plan.steps)} steps are there", *cost_lines(plan, found), *gate_lines(plan, layout)]
    lines += promotion_lines(plan)
    caption = "\n".join([*lines, *excess(plan, found)])
    table = Table(title=f"Plan of {plan.recipe}", caption=caption, title_justify="left", caption_justify="left")
    for column in ("step", "kind", "", "why", "reads", "cores", "time"):
        table.add_column(column, overflow="fold")
    for step in plan.steps:
        verdict, why = verdicts[step.name]
        mark = Text(verdict, style="green" if verdict == "HIT" else "yellow")
        why = "; ".join(filter(None, (why.removeprefix("made by "), condition(step, plan))))
        cells = (Text(step.name), step.kind, mark, Text(why), Text(step.reads))
        table.add_row(*cells, f"{step.resources.all_cpus:g}", _time(found[step.name]))
    return table


def _time(estimate: Estimate) -> str:
    if estimate.cost is None:
        return "unknown"
    took = duration(estimate.cost.seconds)
    return f"saves {took}" if estimate.is_hit else f"about {took}"


def asked_step(
    words: list[str], profile: str | None, overrides: list[str], layout: Layout
) -> tuple[str, str, str | None, list[str]]:
    """Recipe, step, profile and overrides of a question; without a recipe those of the latest run are meant.

    Raises PlanError when there is no run, its recipe is gone, or there are too many words.
    """
    if len(words) == 2:
        return words[0], words[1], profile, overrides
    if len(words) > 2:
        raise PlanError(f"one recipe and one step, these are {len(words)} words: {' '.join(words)}")
    plan = read_plan(layout, chosen_run(None, layout))
    file = next((f for f in (Path(plan.file), layout.root / plan.file) if f.is_file()), None)
    if file is None:
        raise PlanError(f"the recipe of the latest run, {plan.file}, is not there; name one: posttrain why RECIPE STEP")
    return str(file), words[0], profile or plan.profile, overrides or list(plan.overrides)


def promotion_lines(plan: Plan) -> list[str]:
    """What becomes champion, and when, in a line; none without `promote`."""
    wanted = plan.promotion
    if wanted is None:
        return []
    model, gate = wanted.models[-1], wanted.gates[-1]
    return [f"{model} becomes mlflow:{wanted.name}@champion when every gate of {gate} passes"]


def why_text(plan: Plan, name: str, layout: Layout) -> str:
    """Everything that differs between a step and when it last ran; raises PlanError for a step that is not there."""
    names = [step.name for step in plan.steps]
    if name not in names:
        raise PlanError(f"no step `{name}` in {plan.recipe}; {suggest(name, names, 'steps')}")
    step = plan.step(name)
    verdict, why = explain_plan(plan, layout)[name]
    if verdict == "HIT":
        return f"{name}: HIT, {why} (key {step.key[:16]})"
    before = latest(layout, plan.recipe, [name]).get(name)
    known = FactsCache(layout)
    lines = [f"  {line}" for line in differences(before.identity, step.identity, known)] if before else []
    return "\n".join([f"{name}: MISS, {why} (key {step.key[:16]})", *lines])


def recipe_list(folder: Path) -> Table:
    """Recipes of a folder with their first words, and when they run by themselves."""
    table = Table("recipe", "stages", "description", "runs by itself once deployed")
    for path in sorted(folder.glob("*.yaml")):
        try:
            content = read_source(path)
        except RecipeError as error:
            table.add_row(Text(str(path)), "", Text(error.problems[0].message, style="red"), "")
            continue
        if (stages := content.get("stages")) is not None:
            said = due_words(_schedule_of(path)) if content.get("schedule") is not None else None
            description = content.get("description")
            words = Text(shown(str(description.plain())) if description else "")
            table.add_row(Text(str(path)), str(len(stages.value)) if stages.is_map else "", words, Text(said or ""))
    return table


def _schedule_of(path: Path) -> Schedule | None:
    """None for a recipe that is not valid, too."""
    try:
        return load_recipe(path).head.schedule
    except RecipeError:
        return None


def due_words(schedule: Schedule | None) -> str | None:
    """When a recipe runs by itself and what it waits for; None when it does not."""
    if schedule is None:
        return None
    from flows.deployments.schedules import schedule_words  # Prefect computes due times, and takes seconds to import

    return schedule_words(schedule)


def write_starter(path: Path) -> None:
    """Write a small recipe; raises PlanError when the file is there already or its name cannot name a recipe."""
    stem = path.stem.replace(" ", "_")
    try:
        with path.open("x") as stream:
            stream.write(STARTER.format(name=path, stem=stem))
    except FileExistsError as error:
        raise PlanError(f"{path} is there already; give another name: posttrain init other.yaml") from error
    except OSError as error:
        raise PlanError(f"{path} cannot be written: {error.strerror}") from error
