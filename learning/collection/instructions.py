"""A population of instructions that changes with the policy (INSPO, Zhou et al. 2025).

Two functions of a stage share it: the prompt sampler `instruction_population` gives every group an instruction, and
changes the population; the extra samples `instruction_credit` attribute rewards to instructions and keep what failed.
It is the memory of the prompt sampler, which checkpoints hold.
"""

import json
import math
from collections import Counter
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from learning.collection.prompt_samplers import choose_prompts
from learning.data.chat import decode
from learning.data.questions import make_question
from learning.data.rows import Row, read_rows, write_rows
from learning.data.shards import find_shards, scan_shards
from learning.lookup import Inner, RewardFunction, TeacherFunction
from learning.problems.instructed import give_system_message
from learning.samples.sample import Sample, SampleRequest, States, transcript
from learning.sampling.sampler import Sampler, scoring
from schemas.errors import StepError
from schemas.number_schedules import ScheduledFloat

AtLeast1 = Annotated[int, Field(ge=1)]
SLOT = "prompt_sampler"
ASK = (
    "Instructions with their mean rewards:\n{instructions}\n\nWhat failed:\n{experience}\n\nWrite a better instruction."
)
LONGEST = 4000
"""Characters of an instruction."""
Entry = dict[str, Any]
"""An instruction: `text`, and `weight`, which follows its mean reward."""


def instruction_population(
    rows: list[Row],
    num_groups: int,
    n: int,
    seed: int,
    step: int,
    rng: np.random.Generator,
    state: dict[str, Any],
    sampler: Sampler,
    *,
    instructions: Annotated[list[str], Field(min_length=1)],
    proposer: TeacherFunction,
    verify: RewardFunction,
    temperature: ScheduledFloat = 1.0,
    every: AtLeast1 = 5,
    prune: AtLeast1 = 1,
    proposals: AtLeast1 = 2,
    verify_groups: AtLeast1 = 4,
    verify_n: AtLeast1 = 2,
    ask: str = ASK,
) -> list[SampleRequest]:
    """As `uniform`, each group under one of several instructions, its system message, drawn by softmax(w/temperature).

    The weights w follow rewards (`instruction_credit`; 0 at first). Every `every` iterations the `prune` instructions
    with the lowest weights leave the population, and the teacher `proposer` is asked `proposals` times for another one:
    its row's prompt is `ask`, with the population and what failed, which the metadata have as lists. Each new one is
    verified with the current policy, on the same `verify_groups` problems with `verify_n` completions each; those with
    the highest mean of the reward `verify` fill the places, and begin with this mean as their weight. The text of the
    instruction is the family of its samples. Raise StepError for equal instructions.
    """
    population: list[Entry] = state.setdefault("population", [{"text": text, "weight": 0.0} for text in instructions])
    if len({entry["text"] for entry in population}) < len(population):
        raise StepError("prompt_sampler instruction_population: two instructions are the same; write each once")
    if step > 0 and step % every == 0:
        kept = sorted(range(len(population)), key=lambda i: population[i]["weight"])[min(prune, len(population) - 1) :]
        population[:] = [population[i] for i in sorted(kept)]
        texts = _propose(proposer, population, state.get("experience", []), proposals, ask, rng)
        chosen = [rows[int(i)] for i in rng.permutation(len(rows))[:verify_groups]]
        verified = [(_verify(text, chosen, verify_n, sampler, verify), text) for text in texts]
        best = sorted((one for one in verified if not math.isnan(one[0])), key=lambda one: -one[0])
        free = len(instructions) - len(population)
        population += [{"text": text, "weight": reward} for reward, text in best[:free]]
    chance = compute_chances([entry["weight"] for entry in population], temperature)
    drawn = rng.choice(len(population), size=num_groups, p=chance).tolist()
    indices = choose_prompts(len(rows), num_groups, seed, step)
    return [_request(rows[i], n, population[k]["text"]) for i, k in zip(indices, drawn, strict=True)]


def instruction_credit(
    samples: list[Sample],
    states: States,
    sampler: Sampler,
    *,
    rate: Annotated[float, Field(gt=0, le=1)] = 0.3,
    keep: AtLeast1 = 32,
    at_least: float = 1.0,
) -> list[Sample]:
    """Move the weights of instructions towards the mean reward of their samples; add no samples.

    w becomes (1 − `rate`)·w + `rate`·mean for those that were sampled; the others keep theirs. The last `keep` samples
    with a reward below `at_least` are remembered for the proposer, as texts of whole episodes. Raise StepError in a
    stage with another prompt sampler.
    """
    memory = states.get(SLOT, {})
    if "population" not in memory:
        raise StepError("extra_samples instruction_credit: use it with `prompt_sampler: instruction_population`")
    rewards: dict[str, list[float]] = {}
    experience: list[Row] = memory.setdefault("experience", [])
    for sample in samples:
        text = sample.row.get("instruction")
        if sample.reward is None or text is None:
            continue
        rewards.setdefault(text, []).append(sample.reward)
        if sample.reward < at_least:
            said = transcript(lambda ids: decode(sampler.policy.tokenizer, ids), sample.completion_ids, sample.turns)
            asked = str(sample.row["prompt"][-1]["content"])
            experience.append({"instruction": text, "prompt": asked, "said": said, "reward": sample.reward})
    experience[:] = experience[-keep:]
    for entry in memory["population"]:
        if entry["text"] in rewards:
            entry["weight"] += rate * (fmean(rewards[entry["text"]]) - entry["weight"])
    return samples


def compute_chances(weights: list[float], temperature: float) -> np.ndarray:
    """Return softmax(w/temperature). Raise StepError for a temperature that is not above 0."""
    if temperature <= 0:
        raise StepError(f"prompt_sampler instruction_population: temperature {temperature} must be above 0")
    scaled = np.array(weights) / temperature
    share = np.exp(scaled - scaled.max())
    return share / share.sum()


def _request(row: Row, n: int, text: str) -> SampleRequest:
    shown = give_system_message(row, text)["prompt"]
    return SampleRequest(row | {"instruction": text, "family": text}, n, prompt=shown)


def _propose(
    proposer: Inner, population: list[Entry], experience: list[Row], count: int, ask: str, rng: np.random.Generator
) -> list[str]:
    """Return new instructions, without those that are in the population."""
    listed = "\n".join(f"{entry['weight']:.3f} {entry['text']}" for entry in population)
    failed = "\n".join(f"{one['instruction']} | {one['prompt']} | {one['said']}" for one in experience)
    bare = {"id": "instructions", "prompt": [], "answer": None, "family": None}
    row = bare | {
        "prompt": make_question(ask, bare, instructions=listed, experience=failed),
        "metadata": json.dumps({"instructions": population, "experience": experience}),
    }
    known = {entry["text"] for entry in population}
    texts = [str(proposer.bound(row, rng)).strip()[:LONGEST] for _ in range(count)]
    return [text for text in dict.fromkeys(texts) if text and text not in known]


def _verify(text: str, rows: list[Row], n: int, sampler: Sampler, reward: Inner) -> float:
    """Return the mean reward of an instruction with the current policy; NaN without any reward."""
    samples = sampler.sample([_request(row, n, text) for row in rows])
    scores: list[float | None] = reward(**scoring(samples))
    known = [score for score in scores if score is not None]
    return fmean(known) if known else math.nan


def instruct_as_in_the_end(context: Any, *, last: AtLeast1 = 5) -> dict[str, str]:
    """Write the input `prompts` with the instruction that most of the input `trajectories`' last iterations had.

    It is the system message of every problem, which keeps its id: runs that end with other instructions are compared
    problem by problem. Raise StepError if the trajectories have no instructions.
    """
    wanted = pa.schema([("step", pa.int32()), ("family", pa.string())])
    batches = scan_shards(find_shards(context.input("trajectories"), "trajectories"), wanted, "trajectories")
    table = [row for batch in batches for row in batch.to_pylist()]
    ends = max((row["step"] for row in table), default=0)
    counts = Counter(row["family"] for row in table if row["step"] > ends - last and row["family"] is not None)
    if not counts:
        raise StepError("instruct_as_in_the_end: no instructions among the trajectories; raise `log_trajectories`")
    text = min(counts, key=lambda one: (-counts[one], one))
    rows = [
        give_system_message(row, text) | {"id": row["id"]} for row in read_rows(context.input("prompts"), "prompts")
    ]
    write_rows(context.output("prompts"), "prompts", rows)
    return {"instruction": text}
