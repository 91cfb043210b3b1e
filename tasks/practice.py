"""kind: practice — experiences are extracted from groups of rollouts and added to later prompts; weights stay fixed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from learning.agents.acting import make_env
from learning.agents.folder import load_agent, write_practised
from learning.agents.practising import extract_experiences, sample_rollouts
from learning.agents.showing import ShownRows
from learning.api.spending import SpendingAccount
from learning.data.row_journal import RowJournal
from learning.data.rows import Row, read_rows
from learning.environments.making import open_environment
from learning.generation.replicas.engine_loading import load_sampling_policy, open_engine
from learning.lookup import bind
from learning.models.policy import Policy, set_determinism
from learning.samples.engine_protocol import EngineProtocol, Sampling
from learning.samples.sample import History, Sample
from learning.sampling.placed_rewards import place_rewards
from learning.sampling.sampler import Sampler, score
from schemas.agent import Agent
from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.sealed import NotSealed, read_sealed, write_sealed
from schemas.stages.practice import Practice
from tasks.context import Context, Result
from tasks.remote import SpendingReporter, choose_spend, open_account, recall_tokens

SHOWN = 8
"""Most groups in the details."""


def run(stage: Practice, context: Context) -> Result:
    """Practise in rounds: sample with the experiences so far, score, compare within groups, extract new experiences."""
    set_determinism(context.seed, context.num_threads)
    folder, model = context.inputs.get("agent"), context.input("model")
    account = open_account(context, stage.max_tokens_total, stage.max_cost)
    policy, agent = load_sampling_policy(model, context.device, context.actors, stage), load_agent(folder)
    with (
        RowJournal(context.checkpoints / "rollouts.jsonl") as journal,
        open_engine(stage.engine, policy, context.actors, model, account, stage) as engine,
        open_environment(
            engine, make_env(agent, folder), policy.tokenizer, context.inputs, policy.max_length
        ) as episodes,
    ):
        rounds = Rounds(stage, context, agent, policy, engine, episodes, journal, account)
        for step in range(rounds.resume(), stage.max_steps):
            rounds.run(step)
            context.progress(step + 1, stage.max_steps, experiences=len(rounds.experiences))
    rounds.publish()
    return rounds.result()


@dataclass
class Rounds:
    """The rounds of a stage."""

    stage: Practice
    context: Context
    agent: Agent
    """The input agent."""
    policy: Policy
    engine: EngineProtocol
    episodes: EngineProtocol
    """The engine, with the agent's environment around it."""
    journal: RowJournal
    account: SpendingAccount
    experiences: list[str] = field(default_factory=list)
    points: list[dict[str, float]] = field(default_factory=list)
    """Metrics of every round."""
    groups: list[Row] = field(default_factory=list)
    """The groups of all rounds: rollouts, scores, extracted experiences."""
    states: dict[str, object] = field(default_factory=dict)
    history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        stage, context, inputs = self.stage, self.context, self.context.inputs
        self.experiences = list(self.agent.experiences)
        self.prompt_sampler = bind(stage.prompt_sampler, "prompt_sampler", inputs)
        self.extractor = bind(stage.extractor, "extractor", inputs)
        rewards = [bind(use, f"rewards.{i}", inputs) for i, use in enumerate(stage.rewards)]
        self.rewards = place_rewards(rewards, context.actors)
        self.rows = read_rows(context.input("prompts"), "prompts")
        if not self.rows:
            raise StepError("practice: no problems; check what the previous stage dropped")
        self.shown: dict[str, str] = {}
        self.spending, self.spend = SpendingReporter(context, self.account), choose_spend(context, self.engine)
        recall_tokens(context, self.engine, self.journal.tokens)

    def run(self, step: int) -> None:
        """Sample with the experiences so far, score, compare, and save the round."""
        sampler = self.make_sampler(step)
        supplied = self.supply(step, sampler)
        requests = self.prompt_sampler.ask(step, supplied)
        self.check_room(sampler, supplied["rows"])
        try:
            samples = sample_rollouts(sampler, requests, self.journal, self.spend)
            score(self.rewards, [use.weight for use in self.stage.rewards], samples, supplied, shown=self.shown)
            limits = {"min_margin": self.stage.min_margin, "most": self.stage.max_experiences}
            tokenizer, before = self.policy.tokenizer, self.experiences
            self.experiences, groups = extract_experiences(
                self.extractor, samples, before, supplied, tokenizer=tokenizer, **limits
            )
        finally:
            self.spending.report()
        self.history.add(samples)
        self.groups += [{"round": step, **group} for group in groups]
        self.points.append(summarise_round(samples, groups, len(self.experiences)))
        self.context.log(step, **self.points[-1])
        self.save(step, groups)

    def check_room(self, sampler: Sampler, rows: Sequence[Row]) -> None:
        """Raise StepError if the experiences make a prompt too long for a completion to fit."""
        longest = max(len(sampler.encode(row["prompt"], row)) for row in rows) + self.stage.max_completion_length
        shown = min(len(self.experiences), self.agent.context.experiences)
        if longest > self.policy.max_length and shown:
            raise StepError(
                f"practice: the longest prompt and max_completion_length make {longest} tokens, but the model's "
                f"maximum length is {self.policy.max_length}; prompts contain {shown} of {len(self.experiences)} "
                "experiences: lower context.experiences of the agent, or make the extractor write shorter ones"
            )

    def make_sampler(self, step: int) -> Sampler:
        """Return the sampler of a round's episodes, each with its own random stream."""
        sampling = Sampling(self.stage.temperature, self.stage.max_completion_length)
        return Sampler(self.episodes, self.policy, sampling, self.context.seed, step)

    def supply(self, step: int, sampler: Sampler) -> JsonObject:
        """Return the values that prompt sampler, rewards and extractor may take; `sampler` has no environment."""
        stage = self.stage
        return {
            "rows": ShownRows(self.rows, self.agent.model_copy(update={"experiences": self.experiences})),
            "num_groups": stage.generation_batch_size // stage.num_generations,
            "n": stage.num_generations,
            "seed": self.context.seed,
            "step": step,
            "states": self.states,
            "history": self.history,
            "metrics": self.points[-1] if self.points else {},
            "account": self.account,
            "sampler": replace(sampler, engine=self.engine),
            "policy": self.policy,
            "engine": self.engine,
        }

    def save(self, step: int, groups: list[Row]) -> None:
        """Write the state after a round to a file that is complete or absent."""
        state = {"experiences": self.experiences, "states": self.states, "history": self.history.to_json()}
        state |= {"point": self.points[-1], "groups": groups}
        write_sealed(self.file(step), f"round {step}", state)

    def resume(self) -> int:
        """Restore the rounds that a killed step saved; return the round to continue with."""
        step = 0
        while step < self.stage.max_steps and (state := self.load_round(step)) is not None:
            self.experiences, self.states = state["experiences"], state["states"]
            self.history.load(state["history"])
            self.points.append(state["point"])
            self.groups += [{"round": step, **group} for group in state["groups"]]
            self.context.log(step, **state["point"])
            step += 1
        return step

    def load_round(self, step: int) -> JsonObject | None:
        """Return the saved state of a round; None if it did not finish or its file is damaged, which is reported."""
        try:
            return read_sealed(self.file(step), f"round {step}")
        except FileNotFoundError:
            return None
        except NotSealed as error:
            print(f"{error}; round {step} and all later rounds are repeated")
            return None

    def file(self, step: int) -> Path:
        """Return the file of a round's state."""
        return self.context.checkpoints / f"round-{step:05d}.json"

    def publish(self) -> None:
        """Write the agent with its experiences, and a line for every group."""
        learnt = self.agent.model_copy(update={"experiences": self.experiences})
        write_practised(self.context.output("agent"), self.context.inputs.get("agent"), learnt)
        lines = [json.dumps(group, ensure_ascii=False, sort_keys=True) + "\n" for group in self.groups]
        (self.context.output("rounds") / "rounds.jsonl").write_text("".join(lines), encoding="utf-8")

    def result(self) -> Result:
        """Return metrics of the first and the last round, and the experiences."""
        first, last = self.points[0], self.points[-1]
        metrics = {name: value for name, value in last.items() if name != "learnt"}
        metrics["learnt"] = int(sum(point["learnt"] for point in self.points))
        metrics["rollouts"] = sum(len(group["rollouts"]) for group in self.groups)
        metrics |= {"reward_first": first["reward"]} if "reward" in first else {}
        taught = [summarise_group(group) for group in self.groups if group["learnt"]][:SHOWN]
        return Result(metrics, {"experiences": self.experiences, "before": self.agent.experiences, "taught": taught})


def summarise_group(group: Row) -> Row:
    """Return a group for the report: its best and worst rollout, and the experiences learnt from it."""
    best, worst = ("\n".join(group["rollouts"][place]["actions"]) for place in (0, -1))
    summary = {name: group[name] for name in ("round", "learnt", "dropped")}
    return summary | {"problem": group["prompt"][-1]["content"], "best": best, "worst": worst}


def summarise_round(samples: list[Sample], groups: list[Row], experiences: int) -> dict[str, float]:
    """Return the metrics of a round for the curves."""
    scored = [sample.reward for sample in samples if sample.reward is not None]
    return {
        **({"reward": sum(scored) / len(scored)} if scored else {}),
        "differing": sum(group["differs"] for group in groups) / max(len(groups), 1),
        "learnt": float(sum(len(group["learnt"]) for group in groups)),
        "experiences": float(experiences),
        "unscorable": 1 - len(scored) / max(len(samples), 1),
        "completion_length": sum(len(sample.completion_ids) for sample in samples) / max(len(samples), 1),
    }
