"""What docs/tree-search.md shows works: its stages validate, and its environment is searched."""

import re
from pathlib import Path

import yaml

from learning.evaluation.sampled_answers import AnswerSample
from learning.lookup import bind
from schemas.recipe.load import load_recipe
from schemas.use import SearchUse

PAGE = (Path(__file__).parents[1] / "docs/tree-search.md").read_text()
TEXT = dict(re.findall(r"^```\w+ (?:file=)?(\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def test_the_stages_validate(tmp_path):
    stages = {
        "cold_start": {"kind": "init"},
        "games": {
            "kind": "synthesize",
            "emit": "prompts",
            "problems": [{"use": "text_games", "size": 9, "split": "train"}],
        },
        **yaml.safe_load(TEXT["data"]),
        **yaml.safe_load(TEXT["likely"]),
        **yaml.safe_load(TEXT["revisions"]),
        **yaml.safe_load(TEXT["planned"]),
        **yaml.safe_load(TEXT["evaluation"]),
        "trained": {"kind": "rl", "algorithm": "grpo", "model": "cold_start", "prompts": "games", "max_steps": 1}
        | yaml.safe_load(TEXT["rollout"]),
    }
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({"name": "r", "stages": stages}))
    assert {"found", "compared", "likely", "revised", "planned", "proved", "trained"} < set(
        load_recipe(tmp_path / "r.yaml").steps
    )


def test_an_environment_of_ones_own_is_searched(tmp_path, monkeypatch):
    (tmp_path / "my_lab").mkdir()
    (tmp_path / "my_lab/counter.py").write_text(TEXT["my_lab/counter.py"])
    monkeypatch.syspath_prepend(str(tmp_path))
    env = {"use": "my_lab.counter:Environment", "max_turns": 4}
    search = bind(SearchUse.model_validate({"use": "state_best_first", "env": env, "expansions": 9}), "search", {})
    row = {"id": "r", "prompt": [{"role": "user", "content": "count"}], "answer": "7"}
    rows = search([row], lambda rows: [[AnswerSample(n, "stop") for n in "12"] for _ in rows], lambda *_: [])
    assert sorted(row["text"] for row in rows) == ["1", "2", "2", "2"]
    (tmp_path / "r.yaml").write_text(
        "name: r\nstages:\n  base: {kind: init}\n  data:\n    kind: synthesize\n    model: base\n"
        "    problems: [{use: forms, split: train, size: 3}]\n"
        "    search: {use: state_best_first, expansions: 9, env: 'my_lab.counter:Environment'}\n"
    )
    assert load_recipe(tmp_path / "r.yaml").steps
