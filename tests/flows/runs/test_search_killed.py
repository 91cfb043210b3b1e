"""kill -9 of a run whose search is in its third trial: two are kept, the third goes on from its checkpoint."""

import json

import pytest

from lineage.artifacts.store import Store
from tests.flows.runs.test_search_run import RECIPE

LIMIT = 600
"""Seconds after which a search that should be in its third trial is taken for hanging."""
LONG = RECIPE.replace("environment_steps: 80", "environment_steps: 600").replace("save_steps: 20", "save_steps: 100")


def read_finished(checkout):
    """The trials that a journal on disk has: number to what it says of them, the time that they took included."""
    files = [*(checkout.layout.state / "work").glob("*/checkpoints/trials.jsonl")]
    lines = [
        json.loads(line) for file in files for line in file.read_text().splitlines(keepends=True) if line[-1:] == "\n"
    ]
    return {int(name): value for name, value, *_ in lines}


def read_search(checkout):
    """What the manifest says of all trials."""
    made = {manifest.step: manifest for manifest in Store(checkout.layout).manifests()}
    return made["tuned"].details["search"]["trials"]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inprocess", "ray"])
def test_a_killed_search_keeps_its_trials_and_ends_as_if_it_had_not_been(executor, checkout, processes):
    whole, cut = checkout("whole", LONG), checkout("cut", LONG)
    whole.finish(whole.run(executor))

    process = cut.run(executor)
    third = "*/checkpoints/trial-2/trained/checkpoints/step-*"
    processes.wait_for(
        lambda: [*(cut.layout.state / "work").glob(third)],
        LIMIT,
        alive=lambda: process.poll() is None,
        said=lambda: cut.output.read_text(),
    )
    processes.kill(process)
    kept = read_finished(cut)
    assert list(kept) == [0, 1]
    begun = {path.name for path in (cut.layout.state / "work").glob(third)}
    assert begun

    cut.finish(cut.go_on(executor))
    trials = read_search(cut)
    assert trials[:2] == [kept[0], kept[1]]  # with the seconds that they took: they were not made again
    plain = [
        [{k: v for k, v in one.items() if k != "seconds"} for one in made] for made in (trials, read_search(whole))
    ]
    assert plain[0] == plain[1]
    assert len(trials) == 4
    assert cut.digests() == whole.digests()
