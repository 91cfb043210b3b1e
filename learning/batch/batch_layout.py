"""Conversion of samples to the batch that is trained on: a prompt is stored once per group.

Shapes: M tokens of all segments, P paths.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from learning.batch.batch import Batch
from learning.samples.engine_protocol import Generation
from learning.samples.sample import SOURCES, Sample


class _Forest:
    """Segments and token columns under construction."""

    def __init__(self) -> None:
        self.segments: list[list[int]] = []
        self.parents: list[int] = []
        self.leaves: list[int] = []
        self.kept: list[list[str]] = []
        self.columns: dict[str, list[Any]] = {
            name: []
            for name in (
                "learn",
                "lp_behav",
                "owner",
                "external",
                "version",
                "entropy_behav",
                "turn",
                "seconds",
                "earned",
                "state",
                "ok",
                "kind",
                "merit",
                "origin",
                "observed",
            )
        }

    def grow(self, ids: list[int], parent: int, owner: int, kept: Sequence[str] = (), **columns: list[Any]) -> int:
        """Add one segment and return its index; a column that is not given is 0."""
        self.segments.append(list(ids))
        self.kept.append(list(kept))
        self.parents.append(parent)
        for name, column in self.columns.items():
            column += columns.get(name) or [owner if name == "owner" else 0] * len(ids)
        return len(self.segments) - 1


def forest(samples: Sequence[Sample]) -> Batch:
    """Return the samples as the paths of a batch, in their order; the sampled stop token is trained on.

    Token columns in addition to those of `learning.batch.batch`: `external` bool (not sampled by a policy: probability
    1), `version` (iteration that sampled it), `entropy_behav` (nats, 0 if not requested from the engine), `turn` (of
    its episode, from 0), `seconds` (duration of the environment's step for that turn), `earned` (reward of that turn),
    `state` (hash of the environment's state in which it was taken; 0 for a memory or a turn without an answer), `ok`
    bool (the environment carried it out), `kind` (hash of the kind of turn, 0 without one), `merit` (what a rule for
    the kind pays), `origin` (random stream that sampled it; equal in branches that share the token, 0 without
    branches) and `observed` bool (an environment's answer to a turn that is trained on, not a new context). Path
    columns: `path`, `episode`, `group`, `truncated` (it did not end by itself), `source` (index in SOURCES), `prompt`
    and `family` (numbers of the row and of its family), `weight`, `turns` (number of the model's turns).
    """
    made, roots = _Forest(), {}
    earlier: dict[int, tuple[int, ...]] = {}
    for path, sample in enumerate(samples):
        cut, ends = sample.given, []
        after, columns = sample.completion_ids[cut:], _sampled(sample)
        for context, rest in sample.contexts:
            prompt = after[context.start : context.stop] or sample.prompt_ids
            key = (sample.group, tuple(prompt))
            if key not in roots:
                roots[key] = made.grow(prompt, -1, path)
            parent = roots[key]
            if cut and not ends:
                parent = made.grow(sample.completion_ids[:cut], parent, path)
            of_rest = {name: column[rest.start : rest.stop] for name, column in columns.items()}
            kept = sample.kept[cut:][rest.start : rest.stop]
            ends.append(made.grow(after[rest.start : rest.stop], parent, path, kept, **of_rest))
        made.leaves.append(ends[-1])
        if len(ends) > 1:
            earlier[path] = tuple(ends[:-1])
    tokens, paths = _token_columns(made.columns), _path_columns(samples)
    kept = made.kept if any(made.kept) else ()
    return Batch(made.segments, made.parents, made.leaves, tokens, paths, earlier=earlier, kept=kept)


def _sampled(sample: Sample) -> dict[str, list[Any]]:
    """Return the token columns of a sampled completion, or of an external one that is trained on."""
    cut, size = sample.given, len(sample.completion_ids) - sample.given
    outside, learn = sample.logprobs is None, sample.source != "greedy"
    return _turns(sample, size) | {
        "learn": [learn and own for own in sample.own] if sample.turns else [learn] * size,
        "observed": [learn and not own for own in sample.own] if sample.turns else [False] * size,
        "lp_behav": [0.0] * size if sample.logprobs is None else list(sample.logprobs[cut:]),
        "external": [outside] * size,
        "version": list(sample.versions[cut:]),
        "entropy_behav": list(sample.entropies[cut:]),
        "origin": list(sample.origins[cut:]),
    }


def _turns(sample: Sample, size: int) -> dict[str, list[Any]]:
    """Return each token's turn, and what the environment recorded of that turn."""
    if not sample.turns:
        return {}
    turn = [i for i, of in enumerate(sample.turns) for _ in range(of.sampled + of.observed)]
    left = size - len(turn)
    columns: dict[str, list[Any]] = {"turn": turn + [len(sample.turns)] * left}
    for name in ("seconds", "earned", "state", "ok", "kind", "merit"):
        field = "reward" if name == "earned" else name
        columns[name] = [getattr(sample.turns[i], field) for i in turn] + [0] * left
    return columns


def _token_columns(columns: dict[str, list[Any]]) -> dict[str, torch.Tensor]:
    lp_behav_M = torch.tensor(columns["lp_behav"], dtype=torch.float64)
    broken_M = ~lp_behav_M.isfinite()
    return {
        "learn": torch.tensor(columns["learn"], dtype=torch.bool),
        "lp_behav": lp_behav_M.masked_fill(broken_M, 0.0),
        "broken": broken_M,
        "owner": torch.tensor(columns["owner"], dtype=torch.long),
        "external": torch.tensor(columns["external"], dtype=torch.bool),
        "version": torch.tensor(columns["version"], dtype=torch.long),
        "entropy_behav": torch.tensor(columns["entropy_behav"], dtype=torch.float64),
        "turn": torch.tensor(columns["turn"], dtype=torch.long),
        "seconds": torch.tensor(columns["seconds"], dtype=torch.float64),
        "earned": torch.tensor(columns["earned"], dtype=torch.float64),
        "state": torch.tensor(columns["state"], dtype=torch.long),
        "ok": torch.tensor(columns["ok"], dtype=torch.bool),
        "kind": torch.tensor(columns["kind"], dtype=torch.long),
        "merit": torch.tensor(columns["merit"], dtype=torch.float64),
        "origin": torch.tensor(columns["origin"], dtype=torch.long),
        "observed": torch.tensor(columns["observed"], dtype=torch.bool),
    }


def _path_columns(samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    ids = torch.arange(len(samples))
    rows = {key: i for i, key in enumerate(dict.fromkeys(t.row.get("id") for t in samples))}
    families = {key: i for i, key in enumerate(dict.fromkeys(t.row.get("family") for t in samples))}
    columns = {
        "group": torch.tensor([t.group for t in samples], dtype=torch.long),
        "truncated": torch.tensor([t.finish != "stop" for t in samples], dtype=torch.bool),
        "source": torch.tensor([SOURCES.index(t.source) for t in samples], dtype=torch.long),
        "prompt": torch.tensor([rows[t.row.get("id")] for t in samples], dtype=torch.long),
        "family": torch.tensor([families[t.row.get("family")] for t in samples], dtype=torch.long),
        "weight": torch.tensor([t.weight for t in samples], dtype=torch.float64),
        "turns": torch.tensor([t.num_turns for t in samples], dtype=torch.long),
        "path": ids,
        "episode": ids.clone(),
    }
    if all(t.scores for t in samples):
        names = list(dict.fromkeys(name for t in samples for name in t.scores))
        columns |= {f"score:{name}": _numbers([t.scores.get(name) for t in samples]) for name in names}
        columns["reward"] = _numbers([t.reward for t in samples])
        columns["scorable"] = columns["reward"].isfinite()
    return columns


def _numbers(values: list[float | None]) -> torch.Tensor:
    return torch.tensor([math.nan if v is None else float(v) for v in values], dtype=torch.float64)


def single_turn(prompts: Sequence[list[int]], generations: Sequence[Sequence[Generation]]) -> Batch:
    """Return a batch of completions, one group per prompt."""
    return forest(
        [
            Sample(
                {"id": str(group)},
                group,
                "policy",
                list(prompt),
                list(g.token_ids),
                list(g.logprobs),
                g.finish,
                "",
                kept=list(g.kept),
            )
            for group, (prompt, completions) in enumerate(zip(prompts, generations, strict=True))
            for g in completions
        ]
    )
