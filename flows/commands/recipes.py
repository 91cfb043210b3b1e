"""Recipes before a run: the list of them, and a small one to start from."""

from pathlib import Path

from rich.table import Table
from rich.text import Text

from schemas.errors import PlanError, RecipeError, printable
from schemas.recipe.load import load_recipe
from schemas.schedule import Schedule
from schemas.source.parser import read_source

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


def make_recipe_table(folder: Path) -> Table:
    """Recipes of a folder with their first words, and when they run by themselves."""
    table = Table("recipe", "stages", "description", "runs by itself once deployed")
    for path in sorted(folder.glob("*.yaml")):
        try:
            content = read_source(path)
        except RecipeError as error:
            table.add_row(Text(str(path)), "", Text(error.problems[0].message, style="red"), "")
            continue
        if (stages := content.get("stages")) is not None:
            said = describe_due_times(_read_schedule(path)) if content.get("schedule") is not None else None
            description = content.get("description")
            words = Text(printable(str(description.plain())) if description else "")
            table.add_row(Text(str(path)), str(len(stages.value)) if stages.is_map else "", words, Text(said or ""))
    return table


def _read_schedule(path: Path) -> Schedule | None:
    """None for a recipe that is not valid, too."""
    try:
        return load_recipe(path).head.schedule
    except RecipeError:
        return None


def describe_due_times(schedule: Schedule | None) -> str | None:
    """When a recipe runs by itself and what it waits for; None when it does not."""
    if schedule is None:
        return None
    from flows.deployments.schedules import describe_schedule  # Prefect computes due times, and takes seconds to import

    return describe_schedule(schedule)


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
