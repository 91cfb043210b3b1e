"""ReAct: thoughts never reach the world, actions do, and prompts and lessons are written in three styles.

Turns are dictated; worlds, the expert, the filter and the styles are those of the recipe. Not shown: few-shot prompting
of a large model.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from learning.curation.row_filters import succeeded
from learning.data.rows import read_rows, write_rows
from learning.data.thought_lines import split_lines
from learning.environments.lookup_environment import build_environment
from learning.lookup import bind
from learning.models.policy import Policy
from learning.problems.traces import demonstrated, play_traces, retell
from schemas.recipe.load import load_recipe
from tests.papers.dictated import play

STAGES = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "react.yaml").stages
REPORT = STAGES["report"]
QUESTION, GAME = (bind(task.model_copy(update={"size": 1}))()[0] for task in REPORT.tasks)
PAGES = json.loads(QUESTION["metadata"])["pages"]
START = json.loads(QUESTION["metadata"])["start"]


@pytest.fixture
def policy(tiny_policy):
    return Policy(tiny_policy.model, tiny_policy.tokenizer, 4000)


class Folders(SimpleNamespace):
    """What a stage of kind python gets: folders of its inputs and outputs."""

    def input(self, name):
        return self.path / name

    def output(self, name):
        (self.path / name).mkdir(exist_ok=True)
        return self.path / name


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Five traces of questions and two of games, made, curated and written by the recipe's own settings."""
    context = Folders(path=tmp_path_factory.mktemp("traces"), seed=0)
    uses = STAGES["problems"].problems
    rows = [
        row for use, size in zip(uses, (40, 4), strict=True) for row in bind(use.model_copy(update={"size": size}))()
    ]
    write_rows(context.output("prompts"), "prompts", rows)
    run(STAGES["traces"].function, context, play_traces)
    traces = read_rows(context.input("traces"), "chat")
    questions = [row for row in traces if row["family"] == "pages"]
    right = [row for row in questions if is_right(row)][:3]
    wrong = [row for row in questions if not is_right(row)][:2]
    context.path = context.path / "few"
    context.path.mkdir()
    mixed = [right[0], wrong[0], right[1], wrong[1], right[2]]
    kept = [row for row in mixed if all(bind(use)(row) for use in STAGES["right"].filters)]
    assert kept == right, "of five traces with two wrong answers three are left"
    games = [row for row in traces if row["family"] != "pages" and succeeded(row, env=REPORT.env)]
    assert len(games) > 1
    write_rows(context.output("traces"), "chat", [*kept, *games])
    return context


def run(use, context, function):
    """Call the function of a stage with the options of the recipe."""
    assert bind(use).function is function
    return bind(use)(context)


def is_right(row):
    """Whether the last turn of a trace says the answer, read here from the text alone."""
    return row["completion"][-1]["content"].endswith(f"Answer: {row['answer']}")


def tell(context, style):
    use = STAGES[f"lessons_{style}"].function
    run(use, context, retell)
    return read_rows(context.input("lessons"), "chat")


def test_a_thought_reaches_nobody_and_an_action_is_answered_word_for_word():
    inner = build_environment(REPORT.env.model_validate(REPORT.env.options["of"]), {})
    for row, action in ((QUESTION, f"search {START}"), (GAME, "look")):
        bare, episode = inner.begin(row, 0), build_environment(REPORT.env, {}).begin(row, 0)
        calls = []
        step = episode.episode.step
        episode.episode.step = lambda text, step=step, calls=calls: calls.append(text) or step(text)
        before = (episode.save(), episode.state_name)
        thought = episode.step("Thought: where is it?\nperhaps Action of some kind")
        assert (thought.observation, thought.reward, thought.done) == ("", 0.0, False)
        assert calls == []
        assert (episode.save(), episode.state_name) == before
        acted = episode.step(f"Thought: look\nAction: {action}\nObservation: made up\nAction: finish x")
        assert calls == [action], "only the first action counts, and nothing that the model makes up after it"
        assert acted == bare.step(action)
        assert episode.save() == bare.save()


def test_a_thought_adds_nothing_to_the_conversation(policy):
    script = ["Thought: first the page.", f"Action: search {START}", f"Thought: done\nAnswer: {QUESTION['answer']}"]
    (sample,), contexts = play(policy, REPORT, QUESTION, [script])
    first, second, third = contexts[0]
    assert second == first + script[0], "nothing is observed"
    assert third == second + script[1] + PAGES[START][0], "what the page says, word for word"
    assert (sample.reward, sample.finish, len(sample.turns)) == (1.0, "stop", 3)


@pytest.mark.parametrize(
    ("style", "turn", "says"),
    [
        ("act_only", "Thought: hm\nAction: look", "begin a line with Action: or Answer:"),
        ("reason_only", "Action: look", "begin a line with Thought: or Answer:"),
        ("react", "look", "begin a line with Thought: or Action: or Answer:"),
    ],
)
def test_lines_of_another_style_are_not_passed_on(style, turn, says):
    env = REPORT.envs.get(style, REPORT.env)
    episode = build_environment(env, {}).begin(GAME, 0)
    before = episode.save()
    outcome = episode.step(turn)
    assert (outcome.observation, outcome.ok) == (says, False)
    assert episode.save() == before


def test_pages_are_opened_and_read_sentence_by_sentence():
    pages = {"Old Bam": ["bam lies low", "it has a river", "the river is the zed"], "tok": ["tok is old"]}
    row = QUESTION | {"metadata": json.dumps({"pages": pages}), "answer": "zed"}
    episode = build_environment(REPORT.env, {}).begin(row | {"family": "pages"}, 0)

    def ask(action):
        return episode.step(f"Action: {action}").observation

    assert ask("lookup river") == "search a page first"
    assert ask("search bam") == "no page bam. Similar: old bam"
    assert ask("search old  BAM") == "bam lies low"
    assert [ask("lookup River"), ask("lookup river"), ask("lookup river")] == [*pages["Old Bam"][1:], "no more results"]
    assert ask("lookup low") == "bam lies low"
    assert ask("lookup river") == "it has a river", "another word begins anew"
    assert ask("dance") == "search TITLE, lookup WORD or finish ANSWER"
    end = episode.step("Answer: zed")
    assert (end.done, end.reward) == (True, 1.0)
    other = build_environment(REPORT.env, {}).begin(row, 0)
    assert other.step("Answer: tok").reward == 0.0


def test_lessons_are_told_in_their_style(folders):
    told = {style: tell(folders, style) for style in ("react", "act_only", "reason_only")}
    traces = read_rows(folders.input("traces"), "chat")
    assert [row["completion"] for row in told["react"]] == [row["completion"] for row in traces]
    kinds = {
        style: {kind for row in rows for turn in said(row) for kind, _ in split_lines(turn)}
        for style, rows in told.items()
    }
    assert kinds == {
        "react": {"Thought", "Action", "Answer"},
        "act_only": {"Action", "Answer"},
        "reason_only": {"Thought", "Answer"},
    }
    for row, act in zip(traces, told["act_only"], strict=True):
        seen = [message["content"] for message in row["completion"] if message["role"] == "user"]
        assert [message["content"] for message in act["completion"] if message["role"] == "user"] == seen
        actions = [text for turn in said(row) for kind, text in split_lines(turn) if kind != "Thought"]
        assert [text for turn in said(act) for _, text in split_lines(turn)] == actions
    # A game has no answer: nothing is left that could be imitated without acting. A question is one turn of reasoning.
    reasons = told["reason_only"]
    assert [row["id"] for row in reasons] == [row["id"] for row in traces if row["family"] == "pages"]
    assert all([message["role"] for message in row["completion"]] == ["assistant"] for row in reasons)
    lines = [line for turn in said(traces[0]) for line in split_lines(turn) if line[0] != "Action"]
    assert split_lines(said(reasons[0])[0]) == lines


def said(row):
    return [message["content"] for message in row["completion"] if message["role"] == "assistant"]


@pytest.mark.parametrize("style", ["react", "act_only", "reason_only"])
def test_the_prompt_begins_with_exactly_k_examples_in_its_style(folders, style):
    use = STAGES[f"shown_{style}"].problems[0]
    options = {name: value for name, value in use.options.items() if name not in ("of", "traces", "k")}
    assert (use.use, use.options["traces"], options["style"]) == ("demonstrated", "right", style)
    first = read_rows(folders.input("traces"), "chat")[0]
    write_rows(folders.output("asked"), "prompts", [first])
    (own,) = demonstrated(data=folders.input("asked"), traces=folders.input("traces"), k=1, **options)
    assert own["prompt"][0]["content"].count(first["prompt"][0]["content"]) == 1, "its own trace is not shown"
    for k in (1, 2):
        write_rows(folders.output("asked"), "prompts", [QUESTION])
        (row,) = demonstrated(data=folders.input("asked"), traces=folders.input("traces"), k=k, **options)
        *examples, last = row["prompt"][0]["content"].split("\n\n")
        assert last == f"Question: {QUESTION['prompt'][0]['content']}"
        assert len(examples) == k
        for example, trace in zip(examples, read_rows(folders.input("traces"), "chat"), strict=False):
            first, *lines = example.split("\n")
            assert first == f"Question: {trace['prompt'][0]['content']}"
            words = [line.partition(":")[0] for line in lines]
            grammar = {"react": "Thought Action Observation Answer", "act_only": "Action Observation Answer"}
            assert set(words) == set(grammar.get(style, "Thought Answer").split())
            assert words[-1] == "Answer"
            if style == "react":
                assert words[:3] == ["Thought", "Action", "Observation"]
                assert [line.partition(": ")[2] for line in lines if line.startswith("Obs")] == [
                    message["content"] for message in trace["completion"] if message["role"] == "user"
                ]
        assert (row["answer"], row["id"], row["metadata"]) == (QUESTION["answer"], QUESTION["id"], QUESTION["metadata"])


def test_every_fourth_lesson_has_an_example_of_its_own_family(folders):
    rows = tell(folders, "react")
    asked = {row["id"]: row["prompt"][0]["content"] for row in read_rows(folders.input("traces"), "chat")}
    for place, row in enumerate(rows):
        text = row["prompt"][0]["content"]
        assert text.endswith(asked[row["id"]])
        assert text.count("Question: ") == (2 if place % 4 == 3 else 0)
        if place % 4 == 3:
            assert ("you have:" in text.split("\n\n")[0]) == (row["family"] != "pages")


def test_the_expert_thinks_of_what_it_does_next(folders):
    traces = read_rows(folders.input("traces"), "chat")
    first = traces[0]
    town, facts = json.loads(first["metadata"])["start"], json.loads(first["metadata"])["pages"]
    twin = facts[town][0].split()[2]
    assert said(first)[:2] == [
        f"Thought: find twin of {town}\nAction: search {town}",
        f"Thought: twin of {town} is {twin}, find {json.loads(first['metadata'])['relations'][1]} of {twin}"
        f"\nAction: search {twin}",
    ]
    game = traces[-1]
    thoughts = [dict(split_lines(turn))["Thought"] for turn in said(game)]
    assert thoughts
    assert not any(thought.startswith("go ") for thought in thoughts)
    options = STAGES["traces"].function.options
    assert (options["by"], options["env"]["style"]) == ({"use": "thinker", "error_rate": 0.2}, "react")


def test_the_models_differ_in_their_style_and_in_nothing_else():
    tuned = {style: STAGES[style].model_dump() for style in ("react", "act_only", "reason_only")}
    for style, stage in tuned.items():
        assert (stage.pop("data"), stage["model"], stage["train_on"]) == (f"lessons_{style}", "base", "all")
        lessons = STAGES[f"lessons_{style}"]
        assert lessons.inputs == {"traces": "right"}
        assert (lessons.function.options["style"], lessons.function.options["demonstrations"]) == (style, [0, 0, 0, 1])
        prompted = STAGES[f"prompted_{style}"]
        env = REPORT.envs.get(style, REPORT.env)
        assert (prompted.model, prompted.prompts, prompted.env) == (style, f"shown_{style}", env)
        assert env.options["style"] == style
        assert (env.options["of"], env.max_turns) == (REPORT.env.options["of"], REPORT.env.max_turns)
    assert tuned["react"] == tuned["act_only"] == tuned["reason_only"]
    assert dict(REPORT.models) == {style: style for style in tuned}
    assert (STAGES["right"].data, STAGES["traces"].inputs) == ("traces", {"prompts": "problems"})
    questions, held_out = STAGES["problems"].problems, REPORT.tasks
    assert not {row["id"] for row in bind(questions[0])()} & {row["id"] for row in bind(held_out[0])()}
    assert [(use.options["split"], use.options["seed"]) for use in (*questions, *held_out)] == [
        *[("train", 1)] * 2,
        *[("test", 3)] * 2,
    ]
