"""A recipe with every kind of stage, and what is put in the place of its values."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

HEAD = """schema_version: 1
name: hostile
stages:
  base: {kind: init}
  problems:
    kind: synthesize
    emit: prompts
    problems: [{use: reasoning_gym, family: chain_sum, size: 9, split: train}]
"""
RICH = """
schema_version: 1
name: rich
description: every kind once
tags: [a]
seed: 7
vars: {family: chain_sum, samples: 4, sizes: [1, 2]}
defaults: {rl: {learning_rate: 1e-4, max_steps: 10}}
profiles: {tiny: {vars: {samples: 2}}}
schedule: {cron: 0 6 * * 1, timezone: Europe/Berlin, on_change: ['path:./data']}
promote: {model: tuned, gate: report, name: rich}
budget: {core_seconds: 100, tokens: 1000, money: 1.5, prices: {core_hour: 0.1}}
endpoints: {teacher: {base_url: 'http://localhost:1/v1', model: m, timeout: 3, extra: {top_p: 0.9}}}
stages:
  base: {kind: init, config: {model_type: qwen3, hidden_size: 64, num_hidden_layers: 2}, max_length: 64}
  problems:
    kind: synthesize
    emit: prompts
    problems: [{use: reasoning_gym, family: chain_sum, size: 9, split: train}]
  traces: {kind: synthesize, prompts: problems, teacher: {use: answer, error_rate: 0.1}, notes: {round: 2}}
  clean: {kind: curate, data: traces, filters: [{use: printable}], fuzzy_dedup: {threshold: 0.9}, limit: 5}
  cold: {kind: sft, model: base, data: clean, learning_rate: 1e-3, resources: {num_cpus: 1, memory: 2GiB}, timeout: 60}
  pairs: {kind: synthesize, prompts: problems, emit: preference_pairs, model: cold, num_generations: 4}
  judge: {kind: reward_model, model: cold, data: pairs.preference_pairs}
  prefer: {kind: preference, model: cold, data: pairs, loss: {use: dpo, beta: 0.2}}
  tuned:
    kind: rl
    model: cold
    prompts: problems
    algorithm: grpo
    max_steps: 3
    temperature: 1.0
    rewards: [{use: formats.matches, pattern: 'a+', weight: {linear: {from: 0.1, to: 0, steps: 5}}}, answers.exact]
    rollout: {use: synchronous}
    watch: [{metric: reward, min: 0.1, patience: 3}]
    critic: null
  rounds:
    repeat:
      max: 2
      until: eval.accuracy >= 0.9
      first: {tune: base}
      stages:
        sample: {kind: synthesize, prompts: problems, model: previous.tune, seed: '${repeat.iteration}'}
        tune: {kind: sft, model: previous.tune, data: sample}
        also: {kind: sft, model: base, data: sample, matrix: {lr: [0.1, 0.01]}, learning_rate: '${matrix.lr}'}
        eval: {kind: evaluate, models: {tune: tune}, prompts: problems}
  merged: {kind: merge, merge_method: linear, models: [{model: tuned, parameters: {weight: 0.5}}, {model: cold}]}
  report:
    kind: evaluate
    models: {base: base, tuned: tuned}
    tasks: [{use: reasoning_gym, family: '${vars.family}', size: 5, split: test}]
    confidence: 0.9
    gate: {against: base, min_delta: 0.0}
"""
VALUES = {
    "null": "null",
    "map": "{a: 1}",
    "list": "[[], [1]]",
    "minus": "-1",
    "zero": "0",
    "huge float": "1e308",
    "past float": "1e999",
    "not a number": ".nan",
    "infinite": "-.inf",
    "digits": "9" * 5000,
    "64 bits": str(2**63),
    "32 bits": str(2**31),
    "tiny": "1e-320",
    "nul": r'"a\0b"',
    "policy_loss": r'"\ud800"',
    "escape": r'"\e[31m\r"',
    "superscript": "².²",
    "arabic digits": "٣",
    "long word": "w" * 90_000,
    "many dots": "a." * 5000 + "b",
    "switch": "true",
    "date": "2020-01-01",
    "empty": "''",
    "variable": "${vars.family}",
    "no variable": "${vars.",
    "environment": "${env:HOME}",
    "path": "path:/",
    "long path": "path:" + "a" * 5000,
    "hub": "hub:a/b@../../../proc/kmsg",
    "import": "os:system",
    "long import": "m" * 300 + ":f",
    "dunder": "__import__('os').system('id'):f",
    "pattern": "((",
    "controllers": "{controller: x}",
    "schedule": "{piecewise: {0: 1e308, 99999999999999999999: 1}}",
    "deep": "[" * 60 + "]" * 60,
    "bar": "a | b | c",
    "braces": "${${${",
    "tag": "!!python/object:os.system x",
    "binary": "!!binary aGk=",
    "words": "[" + "w, " * 1500 + "w]",
}
"""What is put in the place of every value of a recipe, as YAML."""


@dataclass(frozen=True)
class Hostile:
    """A recipe with the files beside it; `refused` says that it must not be accepted."""

    name: str
    text: str | bytes
    beside: dict[str, str | bytes] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    refused: bool = True

    def write(self, folder: Path) -> Path:
        """Write it down; the recipe's file."""
        for name, content in {**self.beside, "r.yaml": self.text}.items():
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder / "r.yaml"


PLACE = "\u00a7"
"""Stands where a value is put in as text, so that it need be no valid YAML."""


def paths(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where the values of a tree stand."""
    if path:
        yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from paths(child, (*path, key))


def with_value(tree: Any, path: tuple[str | int, ...], new: Any) -> Any:
    """A copy of a tree with another value at a path."""
    if not path:
        return new
    copied = json.loads(json.dumps(tree))
    below = copied
    for key in path[:-1]:
        below = below[key]
    below[path[-1]] = new
    return copied


def replaced(tree: Any, path: tuple[str | int, ...], text: str) -> str:
    """The YAML of a tree with some text, whatever it is, in the place of a value."""
    dumped = yaml.dump(with_value(tree, path, PLACE), allow_unicode=True, sort_keys=False)
    return dumped.replace(f'"{PLACE}"', text).replace(f"'{PLACE}'", text).replace(PLACE, text)
