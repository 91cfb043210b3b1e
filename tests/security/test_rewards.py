"""Every reward there is, asked about hostile completions: none raises, none runs what it reads, none takes long.

The list of rewards is the slot's own, so that a new one is fuzzed without a word; one that needs a row of a special
kind or options needs a line below.
"""

import json
import math
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from learning.api.requests import Answer, Responses
from learning.api.spending import SpendingAccount
from learning.auxiliary_networks.action_values import make_action_values
from learning.data.chat import encode_completion, encode_prompt
from learning.generation.engines.torch import Engine
from learning.lookup import bind
from learning.models.reward_model import make_reward_model
from learning.rewards import (
    collective,
    consensus,
    curiosity,
    duels,
    judges,
    likelihood,
    models,
    pairwise,
    servers,
    steps,
)
from learning.samples.conversation import RoleSample
from learning.samples.engine_protocol import Sampling
from learning.sampling.sampler import Sampler, scoring
from learning.sandbox import child as sandbox
from learning.toy_tasks.circuits import circuits
from learning.toy_tasks.coding import list_functions, program_states, straight_programs
from learning.toy_tasks.countdown import countdown
from learning.toy_tasks.crystals import crystals
from learning.toy_tasks.dialogues import donations
from learning.toy_tasks.documents import documents
from learning.toy_tasks.hardware import modules
from learning.toy_tasks.kernels import kernel_tasks
from learning.toy_tasks.posts import posts
from learning.toy_tasks.rankings import rising
from learning.toy_tasks.records import records
from learning.toy_tasks.sites import site_briefs
from learning.toy_tasks.stack_programs import stack_programs
from learning.toy_tasks.sums import step_chains
from learning.toy_tasks.trips import trips
from schemas.signatures import read_signatures
from schemas.use import RewardUse
from tests.conftest import small_policy
from tests.security.hostile import LONGEST, enormous, hostile

VERIFIERS = {"answers.scored", "computer_algebra.math_verify", "programs.passed"}
"""Read texts in the sandbox alone: fuzzed with the verifiers, and by the tests of the reward."""
SECONDS = 20.0
"""Of this process's time for all hostile completions together; they take a hundredth of it for most rewards."""
SLOW = pytest.mark.slow
PLAIN = {"id": "q", "prompt": [{"role": "user", "content": "1+2="}], "answer": "3", "family": "sums", "metadata": "{}"}
PATTERN = r"(a|aa)+|(\w+\s?)*|(\d+)+ *[+=]"
SCHEMA = {
    "anyOf": [{"type": ["string", "number", "null", "boolean"], "pattern": PATTERN}, {"$ref": "#/$defs/parts"}],
    "$defs": {
        "parts": {
            "uniqueItems": True,
            "items": {"$ref": "#"},
            "additionalProperties": {"$ref": "#"},
            "patternProperties": {PATTERN: {"multipleOf": 0.1}},
        }
    },
}
SUITS = {"of": "answers.exact"}
OPTIONS = {
    "actions.equivalent": {"env": {"use": "guess"}},
    "collective.led": SUITS | {"partner": "p", "calls": 2},
    "collective.observer": SUITS,
    "collective.pioneer": SUITS | {"partner": "p"},
    "curiosity.moderate": {"model": "p", "faults": ["stories.broken_rules"]},
    "composite.inside": SUITS,
    "composite.first": {"of": [{"use": "answers.exact"}, {"use": "steps.arithmetic"}]},
    "composite.gated": SUITS | {"by": {"use": "formats.matches", "pattern": PATTERN}},
    "composite.routed": {"families": {"sums": {"use": "answers.exact"}}, "otherwise": {"use": "tone.kind"}},
    "composite.tiered": {"of": [{"use": "answers.exact"}, {"use": "ranking.kendall"}], "scores": [0, 0.5, 1]},
    "composite.weighted": {"of": [{"use": "answers.exact"}, {"use": "wording.keywords", "words": ["a"]}]},
    "consensus.crowd": {"others": ["p", "p"]},
    "consensus.weighted": {"by": {"use": "answers.exact"}},
    "duels.against": {"by": {"use": "logistic"}, "opponent": "p"},
    "duels.win_rate": {"by": {"use": "better", "of": {"use": "answers.exact"}}},
    "formats.brevity": {"soft": 4, "hard": 80},
    "plans.replayed": {"env": {"use": "guess"}},
    "effort.needed": SUITS | {"cheap": "instant"},
    "effort.price": {"prices": {"instant": 1.0}},
    "roles.downstream": SUITS | {"role": "asks", "solver": "answers"},
    "roles.only": SUITS | {"role": "answers"},
    "roles.outcome": SUITS,
    "roles.total": SUITS,
    "search_steps.steered": SUITS,
    "formats.contains": {"texts": ["a", "{"]},
    "formats.matches": {"pattern": PATTERN},
    "notes.noted": {"key": "outcome", "values": ["solved"]},
    "foreign.trl": {"function": "tests.security.hostile:count_characters"},
    "foreign.verl": {"function": "tests.security.hostile:compute_score"},
    "judges.endpoint": {
        "endpoint": {"base_url": "http://127.0.0.1:9/v1", "model": "m"},
        "votes": 2,
        "temperature": 1.0,
    },
    "judges.model": {"judge": "p", "votes": 2, "temperature": 1.0},
    "judges.own": {"words": {"1": 1.0, "0": 0.0}},
    "likelihood.completion": {"model": "p"},
    "lengths.at_most": {"length_wanted": 9, "unit": "characters"},
    "lengths.cosine": SUITS | {"longest": 99, "unit": "characters"},
    "lengths.target": {"length_wanted": 9},
    "lengths.tiered": {"tiers": {0: 0.0, 9: -1.0}},
    "models.learned": {"model": "p", "normalise": "sigmoid"},
    "models.action_values": {"model": "p"},
    "models.process": {"model": "p"},
    "pairwise.judged": {"judge": "p", "likely": False},
    "pairwise.win_rate": SUITS | {"scale": 0.5},
    "servers.http": {"url": "http://127.0.0.1:9/score"},
    "steps.sound": {"judge": "p"},
    "structured.valid_json": {"json_schema": SCHEMA},
    "wording.keywords": {"words": ["a", "the"], "per_character": 0.1},
}
VARIANTS = {
    "answers.boxed": [{"ignore_case": True}],
    "answers.close": [{"where": "boxed"}, {"where": "whole"}],
    "answers.exact": [{"marker": "####"}, {"ignore_case": True}],
    "consensus.majority": [{"marker": "#"}],
    "execution.states": [{"partial": True}],
    "formats.contains": [{"share": True, "ignore_case": True}],
    "formats.matches": [{"where": "anywhere"}],
    "judges.model": [{"pattern": PATTERN}],
    "judges.own": [{"words": None, "votes": 3, "temperature": 1.0}],
    "likelihood.answer": [{"marker": "#"}, {"gain": True}],
    "pairwise.judged": [{"first": "yes", "second": "no"}],
    "structured.valid_json": [{"where": "fenced"}],
    "steps.distance": [{"floor": None}],
}
"""Further options."""


def rows_of(name):
    """Rows that a reward can score, of every kind that there is."""
    how = {"size": 1, "split": "train"}
    made = {
        "attention.alignment": lambda: records(**how),
        "dialogue": lambda: [*donations(**how, seed=1), PLAIN | {"metadata": "{}", "prompt": chatter()}],
        "crystals": lambda: [row for want in ("group", "stiffness") for row in crystals(want=want, **how)],
        "execution.passed": lambda: [*list_functions(size=1, split="train", level=2), *straight_programs(**how)],
        "programs.states": lambda: [PLAIN | {"metadata": json.dumps({"states": {"x": "1"}})}],
        "execution.states": lambda: program_states(**how),
        "expressions": lambda: countdown(**how),
        "features": lambda: records(**how),
        "hardware": lambda: modules(size=4, split="train"),
        "kernels": lambda: kernel_tasks(**how),
        "overlap": lambda: [row for kind in KINDS for row in documents(kind=kind, **how)],
        "dialogue.personal": lambda: [PLAIN | {"metadata": json.dumps({"facts": {"city": "rome", "pet": "cat"}})}],
        "notes.noted": lambda: [PLAIN | {"metadata": json.dumps({"outcome": "solved"})}],
        "rubrics.weighted": lambda: [
            PLAIN | {"metadata": json.dumps({"rubric": [{"criterion": "a", "evidence": ["a", "{"]}]})}
        ],
        "ranking.kendall": lambda: [PLAIN | {"answer": "9 5 7"}],
        "ranking.rises": lambda: rising(**how),
        "steps.distance": lambda: step_chains(**how),
        "curiosity": lambda: [PLAIN],
        "stack": lambda: stack_programs(**how),
        "stories": lambda: [PLAIN | {"prompt": [{"role": "user", "content": "ann dies.\nbob finds the key."}]}],
        "summaries": lambda: posts(**how),
        "testbench": lambda: circuits(**how),
        "travel": lambda: trips(**how),
        "websites": lambda: site_briefs(**how),
    }
    row_list = made.get(name, made.get(name.partition(".")[0], lambda: [PLAIN]))()
    return [row | {"shown": "5"} for row in row_list]


KINDS = ("lookup", "total", "matching", "ranking", "ordering", "extraction", "listing", "summary")
REWARDS = sorted({name for name, _ in read_signatures(RewardUse)} - VERIFIERS)


def chatter():
    texts = ["i donated twice. i never give money! children need food " + "and more. " * 50, "a b. " * 200]
    return [{"role": role, "content": text} for text in texts for role in ("assistant", "user")]


@pytest.fixture(scope="module")
def policy():
    return small_policy(256, hidden_size=32, intermediate_size=64, num_attention_heads=4, head_dim=8)


@pytest.fixture
def around(policy, monkeypatch, tmp_path):
    """What rewards ask for; judges, partners and servers answer with hostile texts too."""
    hostile_texts = hostile(str(tmp_path / "canary"))
    sampler = Sampler(Engine(policy), policy, Sampling(1.0, 8), 0, 0)

    def replies(judge, questions, *, n, sampling, rng):
        for messages in questions:
            judge.encode(messages)
        return [[hostile_texts[(i * n + k) % len(hostile_texts)] for k in range(n)] for i in range(len(questions))]

    def ask(endpoint, account, questions, **how):
        for question in questions:
            question.key(endpoint)
            question.bound(endpoint)
            json.dumps(question.make_body(endpoint), ensure_ascii=False).encode()
        return Responses(
            [Answer(hostile_texts[i % len(hostile_texts)], "stop", 1, 1) for i in range(len(questions))], []
        )

    def token_rewards(batch):
        return torch.zeros(len(batch.path_T), dtype=torch.float64)

    for module in (collective, consensus, duels, judges, pairwise, steps):
        monkeypatch.setattr(module, "replies", replies)
        monkeypatch.setattr(module, "guest", lambda *folder: sampler)
    for module in (curiosity, likelihood):
        monkeypatch.setattr(module, "guest", lambda folder: sampler)
    monkeypatch.setattr(models, "load_cached_reward_model", lambda folder: make_reward_model(policy, 128))
    values = make_action_values(policy, 2, start="random", scale=1.0, seed=0)
    monkeypatch.setattr(models, "load_cached_action_values", lambda folder: (values, policy))
    monkeypatch.setattr(
        models,
        "load_process_reward_model",
        lambda folder: SimpleNamespace(policy=policy, rewards=token_rewards, separator="\n"),
    )

    async def post(self, client, body):
        body.decode("ascii")
        return json.dumps({"scores": [len(sample["completion"]) for sample in json.loads(body)["samples"]]}).encode()

    monkeypatch.setattr("learning.api.client.ask", ask)
    monkeypatch.setattr(servers.Server, "post", post)
    monkeypatch.setattr("learning.data.patterns.SECONDS", 0.1)
    return {
        "policy": policy,
        "sampler": sampler,
        "account": SpendingAccount(tmp_path / "remote", "s"),
        "step": 0,
        "seed": 0,
        "states": {},
        "round": 0,
    }


def bound(name, options):
    inputs = dict.fromkeys(("judge", "partner", "model", "opponent", "others.0", "others.1"), "p")
    use = RewardUse.model_validate({"use": name, **options})
    return bind(use, "rewards.0", {f"rewards.0.{port}": path for port, path in inputs.items()})


def samples_of(policy, rows, texts, *, ids):
    """Groups of two; with `ids` the tokens of a text are its first ones, else few."""
    samples = []
    for i, text in enumerate(texts):
        row = rows[i % len(rows)]
        prompt = encode_prompt(policy.tokenizer, row["prompt"])
        tokens = encode_completion(policy.tokenizer, [{"role": "assistant", "content": text[:40] if ids else "a"}])
        role = {"role": ("asks", "answers")[i % 2], "policy": "model", "conversation": i // 2, "places": [i % 2]}
        role["entropies"] = [0.5] * len(tokens)
        samples.append(RoleSample(row, i // 2, "policy", prompt, tokens, [-1.0] * len(tokens), "stop", text, **role))
    return samples


class Executed:
    """What is run while hostile texts are scored: code compiled from texts, processes, connections."""

    def __init__(self):
        self.on, self.found = False, []
        sys.addaudithook(self.heard)

    def heard(self, event, args):
        if not self.on:
            return
        from_text = event == "exec" and getattr(args[0], "co_filename", "") in ("<string>", "<unknown>", "<stdin>")
        if event == "subprocess.Popen" and sandbox.__file__ in map(str, args[1]):
            return
        if from_text or event in (
            "os.system",
            "os.exec",
            "os.fork",
            "os.posix_spawn",
            "subprocess.Popen",
            "socket.connect",
        ):
            self.found.append((event, str(args)[:200]))


EXECUTED = Executed()


def asked(reward, around, rows, texts, *, ids=True):
    """The scores, and the seconds that they took."""
    supplies = {**around, **scoring(samples_of(around["policy"], rows, texts, ids=ids))}
    began = time.process_time()
    EXECUTED.found, EXECUTED.on = [], True
    try:
        scores = reward.ask(0, supplies)
    finally:
        EXECUTED.on = False
    return list(scores), time.process_time() - began


def check(reward, around, rows, texts, **how):
    asked(reward, around, rows, ["3", "a"])  # what is imported or compiled once is no text's doing
    scores, seconds = asked(reward, around, rows, texts, **how)
    assert EXECUTED.found == []
    assert len(scores) == len(texts)
    for score, text in zip(scores, texts, strict=True):
        assert score is None or math.isfinite(score), (score, text[:80])
    assert seconds < SECONDS
    return scores


@pytest.mark.parametrize("name", REWARDS)
def test_no_hostile_completion_makes_a_reward_raise_run_or_hang(name, around, tmp_path):
    canary = tmp_path / "canary"
    texts = hostile(str(canary))
    assert len(texts) >= 200
    scored = False
    for options in [{}, *VARIANTS.get(name, [])]:
        reward = bound(name, OPTIONS.get(name, {}) | options)
        scores = check(reward, around, rows_of(name), texts)
        assert not canary.exists()
        scored = scored or any(score is not None for score in scores)
    assert scored, "the rows of this reward cannot be scored: give it a line above"


MODELS = {
    name for name, found in read_signatures(RewardUse) if {"policy", "sampler", "rng", "account"} & set(found.supplied)
}
MODELS |= {name for name in REWARDS if name.partition(".")[0] in ("models", "curiosity")}
"""Those that give whole texts to a tokenizer, which takes a second for a megabyte."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[SLOW] if name in MODELS else []) for name in REWARDS])
def test_no_enormous_completion_makes_a_reward_raise_or_hang(name, around):
    texts = enormous()[:: 8 if name in MODELS else 3]
    reward = bound(name, OPTIONS.get(name, {}))
    check(reward, around, rows_of(name), texts, ids=False)


def test_the_completions_are_hostile_enough():
    texts = hostile("canary")
    assert len(set(texts)) == len(texts) >= 200
    assert max(map(len, texts)) <= LONGEST
    assert sum("canary" in text for text in texts) >= 20
