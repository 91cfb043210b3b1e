"""Episodes that a teacher plays, cut into lessons: a problem for each turn, with the conversation so far as prompt."""

from typing import Any

import numpy as np

from learning.environments.lookup_environment import build_environment
from learning.lookup import Inner
from schemas.errors import StepError
from schemas.use import EnvUse, ProblemsUse, TeacherUse

Row = dict[str, Any]


def turns(*, of: ProblemsUse, by: TeacherUse, env: EnvUse, seed: int = 0) -> list[Row]:
    """The problems of another generator, each once for every turn that the teacher `by` takes in an environment.

    Turn k has the conversation before it as its prompt, and an id that ends with `.k`. What is to be said there the
    teacher of the stage writes: the same one, or one that errs, without the error being built upon. Raises StepError
    for an episode that does not end within `max_turns`, and for an environment that names a stage's output.
    """
    guide: Inner = by
    try:
        environment, made = build_environment(env, {}), []
    except KeyError as port:
        raise StepError(f"turns: {port} is a stage's output; an environment of lessons takes options alone") from None
    for place, row in enumerate(of()):
        rng, episode = np.random.default_rng([seed, place]), environment.begin(row, seed + place)
        messages = list(row["prompt"])
        for turn in range(env.max_turns):
            made.append(row | {"id": f"{row['id']}.{turn}", "prompt": list(messages)})
            said = guide.bound(made[-1], rng)
            outcome = episode.step(said)
            if outcome.done:
                break
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": outcome.observation}]
        else:
            raise StepError(f"turns: the episode of {row['id']} does not end within {env.max_turns} turns")
    return made
