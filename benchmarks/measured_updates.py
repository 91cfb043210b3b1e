"""Costs of iterations of the `rl` loop on this processor without generation, measured on the loop itself."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measured_shapes import LETTERS, Shape

ITERATIONS = 4
"""Of a run of the loop; the first, which allocates, is not counted."""


def rl_stage(groups: int, size: int, longest: int) -> Any:
    """A stage of `async_grpo` that samples in one go: groups of a size, completions of at most so many tokens."""
    import yaml

    from schemas.stages.rl import Rl

    preset = Path(__file__).parents[1] / "recipes" / "algorithms" / "async_grpo.yaml"
    ports = {"kind": "rl", "model": "model", "prompts": "prompts", "rewards": ["async_rollout:vowels"]}
    sizes = {"generation_batch_size": groups * size, "num_generations": size, "logging_steps": 1}
    rest = {"max_completion_length": longest, "max_steps": ITERATIONS, "learning_rate": 1e-5}
    return Rl.model_validate({**yaml.safe_load(preset.read_text()), **ports, **sizes, **rest})


class Watched:
    """Processor seconds of the parts of `tasks.rl.run`, while it runs."""

    def __init__(self) -> None:
        self.iterations: list[tuple[int, float]] = []
        """Tokens that were trained on, prompts once a group, and seconds beside generation."""
        self.ends = 0.0
        """Seconds before the first iteration and after the last."""
        self._tokens = 0

    def run(self, stage: Any, context: Any) -> None:
        """Run a stage; what its module calls is put back afterwards."""
        from tasks import rl

        names = ("iterate", "learn", "prepare", "publish")
        own = {name: getattr(rl, name) for name in names}

        def ended(name: str) -> Callable[..., Any]:
            def timed(*args: Any) -> Any:
                began = time.process_time()
                result = own[name](*args)
                self.ends += time.process_time() - began
                return result

            return timed

        def learn(loop: Any, stage: Any, batch: Any, *args: Any) -> Any:
            self._tokens = len(batch.tokens["learn"])
            return own["learn"](loop, stage, batch, *args)

        def iterate(loop: Any, *args: Any) -> None:
            generate, generating = loop.engine.generate, []

            def timed(*asked: Any) -> Any:
                began = time.process_time()
                result = generate(*asked)
                generating.append(time.process_time() - began)
                return result

            loop.engine.generate, began = timed, time.process_time()
            own["iterate"](loop, *args)
            self.iterations.append((self._tokens, time.process_time() - began - sum(generating)))
            loop.engine.generate = generate

        wrapped = {"iterate": iterate, "learn": learn, "prepare": ended("prepare"), "publish": ended("publish")}
        try:
            for name in names:
                setattr(rl, name, wrapped[name])
            rl.run(stage, context)
        finally:
            for name in names:
                setattr(rl, name, own[name])


def update_points(shape: Shape, model: Path, folder: Path, repeats: int) -> tuple[list[tuple[int, float]], float]:
    """(tokens, seconds) of iterations at every number of groups, and seconds of a stage's beginning and end."""
    from learning.data.rows import write_rows
    from tasks.context import Context

    prompts = folder / "prompts"
    prompts.mkdir()
    rest = {"answer": "", "family": "letters", "metadata": "{}"}
    texts = [f"{a}{b}" for a in LETTERS[:8] for b in LETTERS[-8:]]
    write_rows(prompts, "prompts", [{"id": t, "prompt": [{"role": "user", "content": t}], **rest} for t in texts])
    points, ends = [], []
    # One with hardly a token tells what an iteration takes whatever its tokens.
    for sizes in [(1, 2, 2), *((groups, shape.size, shape.longest) for groups in shape.groups)]:
        for repeat in range(max(1, repeats // 2)):
            work = folder / f"{sizes[0]}-{sizes[1]}-{repeat}"
            (work / "checkpoints").mkdir(parents=True)
            watched = Watched()
            context = Context({"model": model, "prompts": prompts}, work, work / "checkpoints", seed=repeat)
            watched.run(rl_stage(*sizes), context)
            points += watched.iterations[1:]
            ends.append(watched.ends)
    return points, statistics.median(ends)
