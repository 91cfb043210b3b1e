"""kind: collect — act in worlds and write every step."""

import numpy as np

from learning.control.policies.playing import begin
from learning.control.policies.policy import load_control_policy
from learning.control.stepping.transitions import Transitions, gather_episodes, write_transitions
from learning.control.stepping.worlds import Steps, Worlds, require_libraries
from learning.lookup import bind
from learning.models.policy import set_determinism
from schemas.stages.collect import Collect
from tasks.context import Context, Result


def run(stage: Collect, context: Context) -> Result:
    """Act until there are enough steps or episodes, and write them."""
    require_libraries()
    set_determinism(context.seed, context.num_threads)
    make = bind(stage.env, "env", context.inputs)
    worlds = Worlds(make, stage.num_envs, context.seed, "collect")
    rng = np.random.default_rng([context.seed, 1])
    acting = bind(stage.policy, "policy", context.inputs) if stage.policy is not None else None
    exploration = bind(stage.exploration, "exploration", context.inputs) if stage.exploration is not None else None
    policy = load_control_policy(context.input("model")) if stage.model is not None else None
    if policy is not None:
        worlds.spaces.require(policy.spaces, "model")
    player = None if policy is None else begin(policy.actor, stage.num_envs)
    shares = share_episodes(stage)
    collected: list[Steps] = []
    ended_N = np.zeros(stage.num_envs, int)
    while not is_enough(stage, len(collected), ended_N, shares):
        supplies = {"observation_NO": worlds.observation, "spaces": worlds.spaces, "rng": rng, "step": len(collected)}
        if player is not None:
            action_N = player.act(worlds.observation, explore=stage.explore)
        else:
            assert acting is not None
            action_N = acting.ask(0, supplies)
        if exploration is not None:
            action_N = exploration.ask(len(collected), {**supplies, "action_N": action_N})
        collected.append(worlds.step(action_N))
        if player is not None:
            player.see(collected[-1])
        ended_N[[n for n, _, _ in collected[-1].ended]] += 1
    worlds.close()
    transitions = gather_episodes(collected, worlds.spaces, shares)
    write_transitions(context.output("transitions"), transitions)
    return describe_transitions(transitions)


def describe_transitions(transitions: Transitions) -> Result:
    """Return the numbers of steps and episodes, and the mean, least and greatest return."""
    returns = transitions.compute_returns()
    return Result(
        {
            "steps": len(transitions),
            "episodes": len(returns),
            "mean_return": float(returns.mean()),
            "min_return": float(returns.min()),
            "max_return": float(returns.max()),
        }
    )


def share_episodes(stage: Collect) -> list[int] | None:
    """Return how many episodes each world plays; None if steps are counted.

    The number is fixed beforehand: to stop at the first episodes that end would prefer short ones.
    """
    if stage.episodes is None:
        return None
    return [stage.episodes // stage.num_envs + (n < stage.episodes % stage.num_envs) for n in range(stage.num_envs)]


def is_enough(stage: Collect, iterations: int, ended_N: np.ndarray, shares: list[int] | None) -> bool:
    """Return whether as many steps were taken, or episodes of each world ended, as the stage asks for."""
    if shares is not None:
        return bool((ended_N >= shares).all())
    return iterations * stage.num_envs >= (stage.environment_steps or 0)
