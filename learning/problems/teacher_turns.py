"""Imitation data from episodes of a teacher: a problem for each turn, with the conversation so far as its prompt."""

import numpy as np

from learning.data.rows import Row
from learning.environments.lookup_environment import build_environment
from learning.lookup import Inner, ProblemsFunction, TeacherFunction
from schemas.errors import StepError
from schemas.use import EnvUse


def turns(*, of: ProblemsFunction, by: TeacherFunction, env: EnvUse, seed: int = 0) -> list[Row]:
    """Play episodes of another generator's problems with the teacher `by`, and return a problem for every turn.

    Turn k has the conversation before it as its prompt, and an id that ends with `.k`. The stage's teacher writes the
    completion: the same teacher, or one that errs, without the error affecting later turns. Raise StepError if an
    episode does not end within `max_turns`, or if the environment refers to a stage's output.
    """
    guide: Inner = by
    try:
        environment, made = build_environment(env, {}), []
    except KeyError as port:
        raise StepError(
            f"problems turns: {port} refers to a stage's output; give the environment options only"
        ) from None
    for place, row in enumerate(of()):
        rng, episode = np.random.default_rng([seed, place]), environment.begin(row, seed + place)
        messages = list(row["prompt"])
        for turn in range(env.max_turns):
            made.append(row | {"id": f"{row['id']}.{turn}", "prompt": list(messages)})
            action = guide.bound(made[-1], rng)
            outcome = episode.step(action)
            if outcome.done:
                break
            messages += [{"role": "assistant", "content": action}, {"role": "user", "content": outcome.observation}]
        else:
            raise StepError(
                f"problems turns: the episode of {row['id']} does not end within {env.max_turns} turns; raise max_turns"
            )
    return made
