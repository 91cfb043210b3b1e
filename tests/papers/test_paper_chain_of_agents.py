"""Chain-of-Agents: a team's run becomes one chain and back, observations have no weight, and one loop plays all agents.

Completions are dictated; the team, the converter, the filter and the environment are those of the recipe. Not shown:
GAIA and benchmarks of code.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import forest
from learning.data.agent_chains import AgentCall, read_chain, write_chain
from learning.data.chat import decode, encode_completion, encode_text
from learning.data.examples import encode_row
from learning.data.rows import read_rows, write_rows
from learning.environments.making import wrap_in_environment
from learning.lookup import bind
from learning.models.policy import Policy
from learning.problems.agent_chains import cut_chains, distil
from learning.samples.engine_protocol import Generation, Sampling
from learning.samples.sample import SampleRequest
from learning.sampling import verdicts
from learning.sampling.sampler import Sampler, score
from learning.toy_tasks import agent_team
from learning.toy_tasks.agent_team import play_team
from schemas.recipe.load import load_recipe

STAGES = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "chain-of-agents.yaml").stages
TRAINED, TIR = STAGES["trained"], STAGES["tir"]
TOOLS = ["search", "code"]
DOCUMENTS = ["bam twin zed", "bam river tok", "zed twin bam", "zed river lun"]
LOOKUP = {
    "id": "q",
    "prompt": [{"role": "user", "content": "river of twin of bam?"}],
    "answer": "lun",
    "family": "lookup",
    "metadata": json.dumps({"documents": DOCUMENTS}),
}
CHAIN = (
    "<plan>twin, river</plan><search>bam twin</search><observation>bam twin zed</observation>"
    "<reflect>zed, go on</reflect><search>zed river</search><observation>zed river lun</observation>"
    "<reflect>lun, done</reflect><answer>lun</answer>"
)
SUM = LOOKUP | {"id": "s", "prompt": [{"role": "user", "content": "squares below 4?"}], "answer": "14", "family": "sum"}


class Folders(SimpleNamespace):
    """What a stage of kind python gets: folders of its inputs and outputs."""

    def input(self, name):
        return self.path / name

    def output(self, name):
        (self.path / name).mkdir(exist_ok=True)
        return self.path / name


@pytest.fixture
def folders(tmp_path):
    return Folders(path=tmp_path, seed=0)


@pytest.fixture
def calculated(monkeypatch):
    """The coder's program is computed here: the sandbox is tested elsewhere, and takes time."""
    monkeypatch.setattr(agent_team, "python", lambda program: str(sum(n * n for n in range(4))))


def run(name, context, function):
    """Call the function of a stage with the options of the recipe."""
    bound = bind(STAGES[name].function)
    assert bound.function is function
    return bound(context)


def make_chains(folders, rows, stage="chains"):
    """The chains that the recipe makes of runs."""
    write_rows(folders.output("runs"), "prompts", rows)
    metrics = run(stage, folders, distil)
    return read_rows(folders.input("chains"), "chat"), metrics


def log_of(row, rng_seed=0, slips=0.0):
    return list(agent_team.run_team(row, np.random.default_rng(rng_seed), slips))


def list_parts(chain):
    """The texts of a chain between its observations."""
    return chain.replace("<observation>", "</observation>").split("</observation>")[::2]


def with_log(row, log):
    return row | {"metadata": json.dumps(json.loads(row["metadata"]) | {"log": [vars(call) for call in log]})}


def test_a_run_of_the_team_is_one_chain_and_back(folders, calculated):
    log = log_of(LOOKUP)
    question = "river of twin of bam?"
    assert [call.agent for call in log] == ["plan", "search", "reflect", "search", "reflect", "answer"]
    assert log[0] == AgentCall("plan", question, "twin, river")
    assert log[1] == AgentCall("search", "bam twin", "bam twin zed")
    assert log[2].input == f"{question}\n{CHAIN.partition('<reflect>')[0]}"
    (row,), metrics = make_chains(folders, [with_log(LOOKUP, log)])
    assert row["completion"] == [{"role": "assistant", "content": CHAIN}]
    assert read_chain(question, CHAIN, TOOLS) == log
    assert metrics == {"chains": 1, "calls": 6}, "a team needs a call for each agent"
    # Whatever the team does, faults among them, and with every agent of the recipe.
    seen = set()
    for seed in range(40):
        for task in (LOOKUP, SUM):
            made = log_of(task, seed, slips=1.0 if seed % 2 else 0.0)
            asked = task["prompt"][0]["content"]
            assert read_chain(asked, write_chain(asked, made, TOOLS), TOOLS) == made
            seen.add(tuple(call.agent for call in made))
    assert {"code", "search", "plan", "reflect", "answer"} == {agent for agents in seen for agent in agents}
    assert ("plan", "answer") in seen


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ([AgentCall("search", "a</search>b", "c")], "its text contains a tag"),
        ([AgentCall("search", "a", "<answer>c</answer>")], "its text contains a tag"),
        ([AgentCall("observation", "", "c")], "is not observation"),
        ([AgentCall("a b", "", "c")], "a name has letters"),
        ([AgentCall("plan", "something else", "c")], "its input is not the question and the chain so far"),
    ],
)
def test_what_could_not_be_read_back_is_refused(calls, says):
    with pytest.raises(ValueError, match=says):
        write_chain("q", calls, TOOLS)


@pytest.mark.parametrize(
    "chain",
    [
        "lun",
        "<plan>a",
        "<plan>a<search>b</search></plan>",
        "<search>a</search>",
        "<search>a</search><plan>b</plan>",
        "<observation>a</observation>",
        "<plan>a</plan> <answer>b</answer>",
        "<>a</>",
        "<" * 50_000,
        "<a>" * 50_000,
    ],
)
def test_what_is_no_chain_is_not_read(chain):
    with pytest.raises(ValueError, match="character"):
        read_chain("q", chain, TOOLS)
    keep = bind(STAGES["good"].filters[0])
    assert not keep(LOOKUP | {"completion": [{"role": "assistant", "content": chain}]})


def test_observations_are_not_learned_and_everything_else_is_once(folders, tiny_policy):
    make_chains(folders, [with_log(LOOKUP, log_of(LOOKUP))])
    write_rows(folders.output("chains"), "chat", read_rows(folders.input("chains"), "chat"))
    run("lessons", folders, cut_chains)
    lessons, tokenizer = read_rows(folders.input("lessons"), "chat"), tiny_policy.tokenizer
    parts = []
    for row in lessons:
        example = encode_row(tokenizer, row)
        text = decode(tokenizer, [token for token, on in zip(example.ids, example.learned, strict=True) if on])
        assert "observation" not in text
        parts.append(text)
        before = row["prompt"][-1]["content"] if len(row["prompt"]) > 1 else ""
        assert CHAIN.startswith(before + text)
    assert [row["prompt"][0] for row in lessons] == [LOOKUP["prompt"][0]] * 3
    assert parts == [
        part for part in CHAIN.replace("<observation>", "</observation>").split("</observation>")[::2] if part
    ]


class Dictated:
    """An engine that goes on with the next part of a script, up to a stop text; it notes how often it is asked."""

    def __init__(self, tokenizer, parts):
        self.tokenizer, self.parts, self.contexts = tokenizer, parts, []

    def generate(self, requests, sampling):
        (request,) = requests
        text = self.parts[len(self.contexts)]
        self.contexts.append(decode(self.tokenizer, [*request.prompt_ids, *request.begun]))
        ends = text.endswith(("</search>", "</code>"))
        whole = encode_completion(self.tokenizer, [{"role": "assistant", "content": text}])
        ids = encode_text(self.tokenizer, text) if ends else whole
        return [[Generation(ids, [-1.0] * len(ids), "stop")]]

    def sync(self, version):
        pass


def write_in_environment(policy, parts):
    """A completion in the recipe's environment written in these parts, with its reward, and their contexts."""
    engine = Dictated(policy.tokenizer, parts)
    policy = Policy(policy.model, policy.tokenizer, 4000)
    episodes = wrap_in_environment(engine, TRAINED.env, policy.tokenizer, {}, policy.max_length)
    (sample,) = Sampler(episodes, policy, Sampling(1.0, 400), 0, 0).sample([SampleRequest(LOOKUP, 1)])
    rewards = [bind(use, f"rewards.{i}") for i, use in enumerate(TRAINED.rewards)]
    score(rewards, [use.weight for use in TRAINED.rewards], [sample], {"step": 0})
    return sample, engine.contexts


def test_one_loop_plays_all_agents_and_observations_have_no_weight(tiny_policy):
    tokenizer, log = tiny_policy.tokenizer, log_of(LOOKUP)
    parts = list_parts(CHAIN)
    sample, contexts = write_in_environment(tiny_policy, parts)
    assert decode(tokenizer, sample.completion_ids) == CHAIN
    assert read_chain("river of twin of bam?", CHAIN, TOOLS) == log
    # One completion of one model, which goes on behind each tool's answer; the team calls an agent six times.
    assert (len(log), len(contexts), sample.finish, sample.reward) == (6, 3, "stop", 1.0)
    assert [context.partition("bam?")[2] for context in contexts] == [
        CHAIN[: CHAIN.index(part)] if number else "" for number, part in enumerate(parts)
    ]
    own = [token for token, mine in zip(sample.completion_ids, sample.own, strict=True) if mine]
    assert decode(tokenizer, own) == "".join(parts)
    wrong, _ = write_in_environment(tiny_policy, ["<answer>tok</answer>"])
    assert wrong.reward == 0.0
    algorithm = bind_algorithm(TRAINED, {})
    batch = with_dropped(forest([sample, wrong]), mask_truncated=False)
    lp = batch.sampled("lp_behav")
    batch = with_weights(algorithm, with_advantages(algorithm, batch.with_tokens(lp_ref=lp, lp_prox=lp), 0), 0, 400)
    assert len(batch.sampled("w")) == len(own) + len(wrong.completion_ids), "observed tokens are in no loss"
    assert len(sample.completion_ids) > len(own)
    # The mean over all sampled tokens, of every agent alike.
    assert batch.sampled("w").tolist() == pytest.approx([1 / len(batch.sampled("w"))] * len(batch.sampled("w")))


def test_the_filter_drops_what_is_wrong_tool_free_or_too_long(folders, calculated):
    keep = bind(STAGES["good"].filters[0])
    again = "<search>bam twin</search><observation>bam twin zed</observation>"

    def decide(chain, row=LOOKUP):
        return keep(row | {"completion": [{"role": "assistant", "content": chain}]})

    assert decide(CHAIN)
    assert not decide(CHAIN.replace("<answer>lun", "<answer>tok"))
    assert not decide("<plan>twin, river</plan><reflect>lun, done</reflect><answer>lun</answer>")
    assert decide(CHAIN.replace("<answer>", 2 * again + "<answer>")), "eight calls"
    assert not decide(CHAIN.replace("<answer>", 3 * again + "<answer>")), "nine calls"
    assert not decide(CHAIN + "<plan>more</plan>")
    # The team's own faults, as the recipe has them.
    kinds = {"right": 0, "dropped": 0}
    for seed in range(30):
        log = log_of(LOOKUP, seed, slips=STAGES["runs"].function.options["slips"])
        kept = decide(write_chain("river of twin of bam?", log, TOOLS))
        kinds["right" if kept else "dropped"] += 1
        tools = sum(call.agent in TOOLS for call in log)
        assert kept == (log[-1].output == "lun" and tools >= 1 and len(log) <= 8)
    assert min(kinds.values()) > 5


def test_reinforcement_has_only_tasks_that_are_not_answered_without_tools(monkeypatch):
    assert (TRAINED.prompts, STAGES["hard"].data, STAGES["direct"].data) == ("hard", "tasks", "known")
    (use,) = STAGES["hard"].filters
    assert use.options["model"] == "direct"
    asked = []

    def replies(model, prompts, n, **how):
        asked.append((model, prompts))
        return [["14", "3"][:n] for _ in prompts]

    monkeypatch.setattr(verdicts, "guest", lambda folder: str(folder))
    monkeypatch.setattr(verdicts, "replies", replies)
    keep = bind(use, "filters.0", {"filters.0.model": Path("direct")})
    assert [keep(row) for row in (LOOKUP, SUM)] == [True, False]
    assert asked == [("direct", [row["prompt"]]) for row in (LOOKUP, SUM)]


def test_the_comparator_calls_tools_alone_and_is_trained_alike(folders, calculated):
    rows = [with_log(row, log_of(row)) for row in (LOOKUP, SUM)]
    chains, _ = make_chains(folders, rows, "calls")
    agents = {call.agent for row in chains for call in read_chain("q", row["completion"][0]["content"], TOOLS)}
    assert agents == {"search", "code", "answer"}
    whole, _ = make_chains(folders, rows)
    assert len({call.agent for row in whole for call in read_chain("q", row["completion"][0]["content"], TOOLS)}) == 5
    ours, theirs = TRAINED.model_dump(), TIR.model_dump()
    assert {key for key in ours if ours[key] != theirs[key]} == {"model"}
    assert (ours["model"], theirs["model"]) == ("start", "tir_start")
    starts = [STAGES[name].model_dump(exclude={"data"}) for name in ("start", "tir_start")]
    assert starts[0] == starts[1]
    for chains_of, good, lessons in (("chains", "good", "lessons"), ("calls", "good_calls", "tir_lessons")):
        assert STAGES[chains_of].inputs == {"runs": "runs"}
        assert STAGES[good].data == chains_of
        assert STAGES[good].filters == STAGES["good"].filters
        assert STAGES[lessons].inputs == {"chains": good}
        assert STAGES[lessons].function == STAGES["lessons"].function
    report = STAGES["report"]
    assert dict(report.models) == {"start": "start", "trained": "trained", "tir_start": "tir_start", "tir": "tir"}
    assert (report.env, report.rewards) == (TRAINED.env, TRAINED.rewards)


def test_the_team_writes_its_log_of_the_recipes_tasks(folders, calculated):
    rows = bind(STAGES["asked"].problems[0].model_copy(update={"size": 12}))()
    write_rows(folders.output("prompts"), "prompts", rows)
    metrics = run("runs", folders, play_team)
    runs = read_rows(folders.input("runs"), "prompts")
    logs = [json.loads(row["metadata"])["log"] for row in runs]
    assert metrics == {"runs": 12, "calls": sum(map(len, logs)) / 12}
    assert {row["family"] for row in rows} == {"lookup", "sum"}
    right = [
        log[-1]["output"] == row["answer"] for row, log in zip(runs, logs, strict=True) if row["family"] == "lookup"
    ]
    assert 0 < sum(right) < len(right)
    assert make_chains(folders, runs)[1]["chains"] == 12
    held_out = bind(STAGES["report"].tasks[0])()
    assert not {row["id"] for row in bind(STAGES["tasks"].problems[0])()} & {row["id"] for row in held_out}
