"""kind: practice — groups of rollouts teach experiences, which go into the next prompts; the model stays as it is."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from learning.agents.acting import env_of
from learning.agents.folder import agent_at, write_practised
from learning.agents.practising import lessons, rollouts
from learning.agents.showing import ShownRows
from learning.api.spending import Desk
from learning.data.row_journal import RowJournal
from learning.data.rows import read_rows
from learning.environments.making import playing
from learning.generation.replicas.engine_loading import engine_for, policy_for
from learning.lookup import bind
from learning.models.policy import Policy, set_determinism
from learning.samples.engine_protocol import EngineProtocol, Sampling
from learning.samples.history import History
from learning.samples.sample import Sample
from learning.sampling.placed_rewards import place_rewards
from learning.sampling.sampler import Sampler, score
from schemas.agent import Agent
from schemas.errors import StepError
from schemas.sealed import NotSealed, read_sealed, write_sealed
from schemas.stages.practice import Practice
from tasks.context import Context, Result
from tasks.remote import Bills, desk_of, spending

Row = dict[str, Any]
SHOWN = 8
"""Groups that taught something and are kept in the details."""


def run(stage: Practice, context: Context) -> Result:
    """Round after round: sample with what is known, score, compare within groups, write down what was learnt."""
    set_determinism(context.seed, context.num_threads)
    folder, model = context.inputs.get("agent"), context.input("model")
    desk = desk_of(context, stage.max_tokens_total, stage.max_cost)
    policy, agent = policy_for(model, context.device, context.actors), agent_at(folder)
    with (
        RowJournal(context.checkpoints / "rollouts.jsonl") as journal,
        engine_for(stage.engine, policy, context.actors, model, desk) as engine,
        playing(engine, env_of(agent, folder), policy.tokenizer, context.inputs) as episodes,
    ):
        work = Work(stage, context, agent, policy, engine, episodes, journal, desk)
        for step in range(work.resume(), stage.max_steps):
            work.round(step)
            context.progress(step + 1, stage.max_steps, experiences=len(work.experiences))
    work.publish()
    return work.result()


@dataclass
class Work:
    """The rounds of a stage."""

    stage: Practice
    context: Context
    agent: Agent
    """As it came in."""
    policy: Policy
    engine: EngineProtocol
    episodes: EngineProtocol
    """The engine, with the agent's environment around it."""
    journal: RowJournal
    desk: Desk
    experiences: list[str] = field(default_factory=list)
    points: list[dict[str, float]] = field(default_factory=list)
    """Of every round."""
    groups: list[Row] = field(default_factory=list)
    """Of all rounds: rollouts, scores, what was learnt."""
    states: dict[str, Any] = field(default_factory=dict)
    history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        stage, context, inputs = self.stage, self.context, self.context.inputs
        self.experiences = list(self.agent.experiences)
        self.plan, self.extractor = (
            bind(stage.prompt_sampler, "prompt_sampler", inputs),
            bind(stage.extractor, "extractor", inputs),
        )
        rewards = [bind(use, f"rewards.{i}", inputs) for i, use in enumerate(stage.rewards)]
        self.rewards = place_rewards(rewards, context.actors)
        self.rows = read_rows(context.input("prompts"), "prompts")
        if not self.rows:
            raise StepError("practice: no problems; look at what the stage before it dropped")
        self.shown: set[str] = set()
        self.bills, self.spend = Bills(context, self.desk), spending(context, self.engine)

    def round(self, step: int) -> None:
        """Sample with the experiences so far, score, compare, and put down what came of it."""
        sampler = self.sampler(step)
        have = self.have(step, sampler)
        requests = self.plan.ask(step, have)
        self.check_room(sampler, have["rows"])
        try:
            samples = rollouts(sampler, requests, self.journal, self.spend)
            score(self.rewards, [use.weight for use in self.stage.rewards], samples, have, shown=self.shown)
            limits = {"min_margin": self.stage.min_margin, "most": self.stage.max_experiences}
            tokenizer, before = self.policy.tokenizer, self.experiences
            self.experiences, groups = lessons(self.extractor, samples, before, have, tokenizer=tokenizer, **limits)
        finally:
            self.bills.tell()
        self.history.add(samples)
        self.groups += [{"round": step, **group} for group in groups]
        self.points.append(point(samples, groups, len(self.experiences)))
        self.context.log(step, **self.points[-1])
        self.save(step, groups)

    def check_room(self, sampler: Sampler, rows: Sequence[Row]) -> None:
        """Raises StepError where experiences have grown so that a prompt leaves no room for a completion."""
        longest = max(len(sampler.encode(row["prompt"])) for row in rows) + self.stage.max_completion_length
        shown = min(len(self.experiences), self.agent.context.experiences)
        if longest > self.policy.max_length and shown:
            raise StepError(
                f"practice: the longest prompt and max_completion_length make {longest} tokens, the model holds "
                f"{self.policy.max_length}; the agent shows {shown} of {len(self.experiences)} experiences: lower its "
                "context.experiences, or let the extractor be brief"
            )

    def sampler(self, step: int) -> Sampler:
        """Episodes of one round, each stream its own."""
        sampling = Sampling(self.stage.temperature, self.stage.max_completion_length)
        return Sampler(self.episodes, self.policy, sampling, self.context.seed, step)

    def have(self, step: int, sampler: Sampler) -> dict[str, Any]:
        """What plan, rewards and extractor may ask for; who asks the model does so outside of the environment."""
        stage, plain = self.stage, replace(sampler, engine=self.engine)
        return {
            "rows": ShownRows(self.rows, self.agent.model_copy(update={"experiences": self.experiences})),
            "num_groups": stage.generation_batch_size // stage.num_generations,
            "n": stage.num_generations,
            "seed": self.context.seed,
            "step": step,
            "states": self.states,
            "history": self.history,
            "metrics": self.points[-1] if self.points else {},
            "desk": self.desk,
            "sampler": plain,
            "policy": self.policy,
            "engine": self.engine,
        }

    def save(self, step: int, groups: list[Row]) -> None:
        """Put a round down whole."""
        state = {"experiences": self.experiences, "states": self.states, "history": self.history.to_json()}
        state |= {"point": self.points[-1], "groups": groups}
        write_sealed(self.file(step), f"round {step}", state)

    def resume(self) -> int:
        """Take up what a killed step has put down; the round to go on with."""
        step = 0
        while step < self.stage.max_steps and (state := self.put_down(step)) is not None:
            self.experiences, self.states = state["experiences"], state["states"]
            self.history.load(state["history"])
            self.points.append(state["point"])
            self.groups += [{"round": step, **group} for group in state["groups"]]
            self.context.log(step, **state["point"])
            step += 1
        return step

    def put_down(self, step: int) -> dict[str, Any] | None:
        """What a round left; None where it did not end, or is not as it was written, which is said."""
        try:
            return read_sealed(self.file(step), f"round {step}")
        except FileNotFoundError:
            return None
        except NotSealed as error:
            print(f"{error}; round {step} and all after it are done again")
            return None

    def file(self, step: int) -> Path:
        """Where a round is put down."""
        return self.context.checkpoints / f"round-{step:05d}.json"

    def publish(self) -> None:
        """Write the agent with what it has learnt, and a line for every group."""
        learnt = self.agent.model_copy(update={"experiences": self.experiences})
        write_practised(self.context.output("agent"), self.context.inputs.get("agent"), learnt)
        lines = [json.dumps(group, ensure_ascii=False, sort_keys=True) + "\n" for group in self.groups]
        (self.context.output("rounds") / "rounds.jsonl").write_text("".join(lines), encoding="utf-8")

    def result(self) -> Result:
        """Numbers of the first and the last round, and what was learnt."""
        first, last = self.points[0], self.points[-1]
        metrics = {name: value for name, value in last.items() if name != "learnt"}
        metrics |= {"learnt": int(sum(one["learnt"] for one in self.points)), "rollouts": 0}
        metrics["rollouts"] = sum(len(group["rollouts"]) for group in self.groups)
        metrics |= {"reward_first": first["reward"]} if "reward" in first else {}
        taught = [taught_by(group) for group in self.groups if group["learnt"]][:SHOWN]
        return Result(metrics, {"experiences": self.experiences, "before": self.agent.experiences, "taught": taught})


def taught_by(group: Row) -> Row:
    """A group that taught something, for a reader: what its best and its worst rollout said, and the lesson."""
    best, worst = ("\n".join(group["rollouts"][place]["said"]) for place in (0, -1))
    told = {name: group[name] for name in ("round", "learnt", "dropped")}
    return told | {"problem": group["prompt"][-1]["content"], "best": best, "worst": worst}


def point(samples: list[Sample], groups: list[Row], experiences: int) -> dict[str, float]:
    """A round in the curves."""
    scored = [sample.reward for sample in samples if sample.reward is not None]
    return {
        **({"reward": sum(scored) / len(scored)} if scored else {}),
        "differing": sum(group["differs"] for group in groups) / max(len(groups), 1),
        "learnt": float(sum(len(group["learnt"]) for group in groups)),
        "experiences": float(experiences),
        "unscorable": 1 - len(scored) / max(len(samples), 1),
        "completion_length": sum(len(sample.completion_ids) for sample in samples) / max(len(samples), 1),
    }
