"""Forms of a web page that are filled in by an instruction: worlds that may begin partly solved, and their progress.

An observation is the instruction, F pairs of a field's name and a word in any order, and the page, F fields with their
names and contents. A choice writes a word into a field. Shapes: N worlds, F fields, V words.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium
import numpy as np
from pydantic import Field

from learning.control.networks.form_network import find_sizes, split_form
from learning.control.stepping.spaces import read_spaces
from learning.lookup import Inner
from schemas.control import WorldUse
from schemas.errors import StepError
from schemas.references import DirectoryRef

if TYPE_CHECKING:
    WorldFunction = Inner
else:
    WorldFunction = WorldUse
"""Option of a function: a world, which it gets bound."""
Several = Annotated[int, Field(ge=2)]
Count = Annotated[int, Field(ge=1)]
Info = dict[str, Any]
"""What Gymnasium passes beside observations and rewards."""
FILE = "tasks.json"
EMPTY = -1


class Form(gymnasium.Env):
    """Earns 1, and ends, when every field has the word that the instruction names; after `limit` words it is cut off.

    All but `open` fields, drawn evenly, are filled in correctly at the start. Instructions are drawn evenly, or are one
    of `tasks`, a word for each field.
    """

    def __init__(self, fields: int, words: int, open_fields: int, limit: int, tasks: Sequence[Sequence[int]]) -> None:
        self.fields, self.words, self.open, self.limit, self.tasks = fields, words, open_fields, limit, tasks
        size = fields * (2 * fields + 2 * words + 1)
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (size,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(fields * words)

    def observe(self) -> np.ndarray:
        """Return the instruction and the page."""
        names, words, contents = (np.eye(size, dtype=np.float32) for size in (self.fields, self.words, self.words + 1))
        wish = [np.concatenate([names[field], words[self.wanted[field]]]) for field in self.order]
        page = [np.concatenate([names[field], contents[self.page[field]]]) for field in range(self.fields)]
        return np.concatenate([*wish, *page])

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Draw an instruction and which fields are open."""
        super().reset(seed=seed)
        if self.tasks:
            self.wanted = np.array(self.tasks[int(self.np_random.integers(len(self.tasks)))])
        else:
            self.wanted = self.np_random.integers(self.words, size=self.fields)
        self.order, self.steps = self.np_random.permutation(self.fields), 0
        self.page = self.wanted.copy()
        self.page[self.np_random.permutation(self.fields)[: self.open]] = EMPTY
        return self.observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Write a word into a field."""
        field, word = divmod(int(action), self.words)
        self.page[field] = word
        self.steps += 1
        done = bool((self.page == self.wanted).all())
        return self.observe(), float(done), done, not done and self.steps >= self.limit, {}


def form(
    *,
    fields: Several = 5,
    words: Several = 4,
    open: Count | None = None,
    limit: Count = 8,
    tasks: DirectoryRef | None = None,
) -> Form:
    """Return a form; all but `open` fields begin filled in (null: none); `tasks` are instructions that a step wrote."""
    if open is not None and open > fields:
        raise StepError(f"form: {open} open fields, and there are {fields}")
    return Form(fields, words, open or fields, limit, [] if tasks is None else read_tasks(Path(tasks), fields, words))


def read_tasks(folder: Path, fields: int, words: int) -> list[list[int]]:
    """Return the instructions in a folder. Raise StepError if they are none of such a form."""
    try:
        tasks = [[int(word) for word in task] for task in json.loads((folder / FILE).read_text())["tasks"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StepError(f"tasks: {folder.name} has no {FILE}: name the output of `write_instructions`") from error
    if not tasks or any(len(task) != fields or not set(task) <= set(range(words)) for task in tasks):
        raise StepError(f"tasks: {folder.name} has no instructions for {fields} fields and {words} words")
    return tasks


def describe_page(observation_O: np.ndarray, fields: int, words: int) -> list[int] | None:
    """Return the instruction that a page satisfies, a word for each field; None if a field is empty."""
    _, _, _, contents_FV = split_form(observation_O[None], fields, words)
    filled = contents_FV[0, :, :words]
    return None if not filled.any(-1).all() else filled.argmax(-1).tolist()


def write_instructions(
    context: Any, *, env: WorldFunction, count: Count = 100, longest: Count = 200
) -> dict[str, float]:
    """Write `count` instructions, each of a page to which random words led: tasks that need no author.

    Where no page is filled in, another episode is tried; after `longest` for each instruction StepError is raised.
    """
    world, rng, tasks = env(), np.random.default_rng(context.seed), []
    spaces = read_spaces(world)
    fields, words = find_sizes(spaces)
    for _ in range(count * longest):
        shown, _ = world.reset(seed=int(rng.integers(2**31)))
        over, task = False, None
        while not over and task is None:
            shown, _, terminated, truncated, _ = world.step(int(rng.integers(spaces.actions)))
            over, task = terminated or truncated, describe_page(np.asarray(shown), fields, words)
        tasks += [] if task is None else [task]
        if len(tasks) == count:
            break
    else:
        raise StepError(f"write_instructions: random words filled in {len(tasks)} pages in {count * longest} episodes")
    (context.output("result") / FILE).write_text(json.dumps({"tasks": tasks}) + "\n")
    return {"tasks": count, "different": len({tuple(task) for task in tasks})}


def measure_progress(observation_NO: np.ndarray, fields: int, words: int) -> np.ndarray:
    """Return the share of fields that have the word that the instruction names (N,)."""
    names_F, words_F, _, contents_F = split_form(observation_NO, fields, words)
    # Pairs are in any order: word of field f is that of the pair with its name.
    wanted_NFV = names_F.transpose(0, 2, 1) @ words_F
    return (wanted_NFV * contents_F[:, :, :words]).sum((1, 2)) / fields


def shape_by_progress(
    observation_NO: np.ndarray,
    reward_N: np.ndarray,
    next_observation_NO: np.ndarray,
    spaces: Any,
    *,
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0,
) -> dict[str, np.ndarray]:
    """Add γ Φ(s') − Φ(s) to the rewards of forms, Φ being the share of fields that are right (Ng et al. 1999)."""
    fields, words = find_sizes(spaces)
    before, after = (measure_progress(shown, fields, words) for shown in (observation_NO, next_observation_NO))
    return {"reward": reward_N + gamma * after - before}
