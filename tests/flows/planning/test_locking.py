"""A lock names exactly what drifted from it, and nothing runs that did."""

import sys

import pytest
import yaml

from flows.cli import main
from flows.planning.locking import make_lock, read_lock
from lineage.artifacts.provenance import find_needed_packages
from lineage.layout import Layout
from schemas.errors import PlanError
from tests.small_steps import write_checkpoint_files

LAB = '''
from lock_lab_words import WORDS
from tasks.context import Context


def words(context: Context, *, times: int = 1) -> dict[str, int]:
    """Write words."""
    (context.output("result") / "words.txt").write_text(" ".join(WORDS * times))
    return {"words": len(WORDS) * times}


def copy(context: Context) -> None:
    """Write down what is there."""
    for name in context.inputs:
        (context.output("result") / "n.txt").write_text(str(sorted(p.name for p in context.input(name).iterdir())))
'''
RECIPE = """
name: held
seed: 3
vars: {teacher: answer}
stages:
  words: {kind: python, function: {use: "lock_lab:words", times: 2}}
  seen: {kind: python, function: "lock_lab:copy", inputs: {data: "path:texts", model: "hub:lab/judge@main"}}
  lessons:
    kind: synthesize
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 4, style: short}]
    teacher: "${vars.teacher}"
  base: {kind: init}
  prompts:
    kind: synthesize
    emit: prompts
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 4, style: short}]
  better:
    kind: rl
    algorithm: grpo
    model: base
    prompts: prompts
    rewards: [{use: judges.model, judge: "hub:lab/judge@main"}]
    generation_batch_size: 4
    num_generations: 2
    max_steps: 1
    max_completion_length: 4
"""
COMMITS = ("1" * 40, "2" * 40)


class Held:
    """A folder of a user with a locked recipe and a local cache of the hub."""

    def __init__(self, folder, monkeypatch, capsys):
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys
        monkeypatch.setenv("POSTTRAIN_ROOT", str(folder))
        monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hub"))
        monkeypatch.chdir(folder)
        self.write("lock_lab.py", LAB)
        self.write("lock_lab_words.py", "WORDS = ['a', 'b']\n")
        self.write("held.yaml", RECIPE)
        self.write("texts/rows.txt", "1\n2\n")
        for commit in COMMITS:
            write_checkpoint_files(folder / f"hub/models--lab--judge/snapshots/{commit}", "qwen3")
        self.write("hub/models--lab--judge/refs/main", COMMITS[0])

    def write(self, name, text):
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def __call__(self, *words):
        """Exit code and what was said."""
        for name in [m for m in sys.modules if m.startswith("lock_lab")]:
            del sys.modules[name]
        self.monkeypatch.setattr(sys, "argv", ["posttrain", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = self.capsys.readouterr()
        return ended.value.code, captured.out + captured.err

    def drift(self, *words):
        """What `plan --locked` names."""
        code, output = self("plan", "--locked", "held.yaml", *words)
        assert code == 3, output
        head, *lines, advice = output.strip().splitlines()
        assert head == "held.yaml has drifted from held.lock:"
        assert advice.startswith("to accept the changes, lock it again: posttrain lock held.yaml")
        return [line.strip() for line in lines]


@pytest.fixture
def held(tmp_path, monkeypatch, capsys):
    made = Held(tmp_path, monkeypatch, capsys)
    code, made.said = made("lock", "held.yaml")
    assert code == 0, made.said
    return made


def test_a_lock_holds_sources_judges_teachers_settings_code_and_packages(held):
    lock = yaml.safe_load((held.folder / "held.lock").read_text())
    assert lock["sources"]["hub:lab/judge@main"] == {"commit": COMMITS[0]}
    assert len(lock["sources"]["path:texts"]["digest"]) == 64
    assert lock["models"]["better.rewards.0.judge"] == "hub:lab/judge@main"
    assert lock["models"]["lessons.teacher"]["use"] == "answer"
    assert lock["steps"]["words"]["settings"]["function"] == {"use": "lock_lab:words", "times": 2}
    assert {"lock_lab", "lock_lab_words", "tasks.python", "learning.rewards.judges"} <= set(lock["code"])
    assert lock["packages"]["torch"].startswith("2.")
    assert lock["python"] == ".".join(map(str, sys.version_info[:3]))
    assert f"hub:lab/judge@main: commit {COMMITS[0]}" in held.said


def test_equal_states_give_equal_bytes_and_no_drift(held):
    before = (held.folder / "held.lock").read_bytes()
    assert held("lock", "held.yaml")[0] == 0
    assert (held.folder / "held.lock").read_bytes() == before
    assert str(held.folder).encode() not in before
    assert held("plan", "--locked", "held.yaml")[0] == 0
    assert held("run", "--locked", "held.yaml", "--to", "words", "--executor", "inprocess")[0] == 0
    again = held("plan", "--locked", "held.yaml", "--to", "words", "--fresh")
    assert again[0] == 0, again[1]


def test_a_moved_branch_of_the_hub(held):
    held.write("hub/models--lab--judge/refs/main", COMMITS[1])
    assert held.drift() == ["hub:lab/judge@main: commit 1111111111111111 → 2222222222222222"]


def test_other_data(held):
    digest = yaml.safe_load((held.folder / "held.lock").read_text())["sources"]["path:texts"]["digest"]
    held.write("texts/rows.txt", "1\n")
    (line,) = held.drift()
    assert line.startswith(f"path:texts: digest {digest[:16]} → ")


def test_data_under_dvc_is_named_by_its_md5_too(held):
    held.write("texts.dvc", "outs: [{md5: 0123456789abcdef0123456789abcdef.dir, path: texts}]\n")
    held("lock", "held.yaml")
    held.write("texts.dvc", "outs: [{md5: fedcba9876543210fedcba9876543210.dir, path: texts}]\n")
    assert held.drift() == ["path:texts: dvc 0123456789abcdef → fedcba9876543210"]


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        ("stages.words.function.times=3", ["stages.words.function.times: 2 → 3"]),
        ("vars.teacher=worked_sum", ["stages.lessons.teacher.use: answer → worked_sum"]),
        ("stages.better.num_generations=4", ["stages.better.num_generations: 2 → 4"]),
        ("seed=4", ["seed: 3 → 4"]),
        ("stages.words.seed=4", ["stages.words.seed: 3 → 4"]),
        ("name=other", ["recipe: held → other"]),
    ],
)
def test_another_setting(held, change, lines):
    changes = held.drift("--set", change)
    if change.startswith("vars"):  # another teacher has other options too
        changes = [line for line in changes if line.startswith("stages.lessons.teacher.use")]
    assert changes == lines


def test_what_does_not_change_results_does_not_drift(held):
    held.write("held.yaml", "# a remark\n" + RECIPE.replace("name: held", "name: held\ndescription: what it is for"))
    held.write("lock_lab_words.py", "# a remark\nWORDS = ['a', 'b']\n")
    assert held("plan", "--locked", "held.yaml", "--set", "stages.words.retries=2")[0] == 0


def test_a_module_of_the_users_own(held):
    held.write("lock_lab_words.py", "WORDS = ['a', 'b', 'c']\n")
    assert held.drift() == ["code: lock_lab_words.py changed"]


def test_steps_that_came_and_went(held):
    held.write("held.yaml", RECIPE.replace("  words:", "  others:"))
    assert held.drift() == ["step others: is new", "step words: is no longer in the recipe"]


def test_packages_and_python(held):
    file = held.folder / "held.lock"
    lock = yaml.safe_load(file.read_text())
    now = lock["packages"]["numpy"]
    lock["packages"] |= {"numpy": "1.0", "gone-package": "2.0"}
    del lock["packages"]["scipy"]
    lock["python"] = "3.9.1"
    file.write_text(yaml.safe_dump(lock))
    here = make_lock.__globals__["platform"].python_version()
    scipy = find_needed_packages()["scipy"]
    assert held.drift() == [
        f"python: 3.9.1 → {here}",
        "package gone-package: 2.0 → not installed",
        f"package numpy: 1.0 → {now}",
        f"package scipy: not installed → {scipy}",
    ]


def test_several_drifts_are_all_named_and_nothing_runs(held):
    held.write("hub/models--lab--judge/refs/main", COMMITS[1])
    held.write("lock_lab_words.py", "WORDS = []\n")
    code, output = held("run", "--locked", "held.yaml", "--executor", "inprocess")
    assert code == 3
    assert "commit 1111111111111111 → 2222222222222222" in output
    assert "code: lock_lab_words.py changed" in output
    assert not (Layout(held.folder).state / "runs").exists()
    code, output = held("lock", "held.yaml")
    assert "changed since the last lock: code: lock_lab_words.py changed" in output
    assert held("plan", "--locked", "held.yaml")[0] == 0


def test_a_profile_has_a_lock_of_its_own_state(held):
    held.write("held.yaml", RECIPE + "profiles: {tiny: {stages: {words: {function: {times: 1}}}}}\n")
    assert held("plan", "--locked", "held.yaml")[0] == 0
    assert held.drift("--profile", "tiny") == ["profile: null → tiny", "stages.words.function.times: 2 → 1"]


def test_an_edited_key_is_seen(held):
    file = held.folder / "held.lock"
    lock = yaml.safe_load(file.read_text())
    lock["steps"]["words"]["key"] = "0" * 64
    file.write_text(yaml.safe_dump(lock))
    assert held.drift() == ["keys of words: not those of the lock"]


@pytest.mark.parametrize("text", [None, "", "[1]", "lock_version: 99", "{", "[" * 900, "\0", "lock_version: 2"])
def test_a_missing_lock_or_one_of_another_version_is_reported(held, text):
    file = held.folder / "held.lock"
    file.unlink() if text is None else file.write_text(text)
    code, output = held("plan", "--locked", "held.yaml")
    assert code == 3
    assert "posttrain lock held.yaml" in output if text is None else "not a lock" in output


def test_a_lock_that_was_cut_off_anywhere_says_so(held):
    file = held.folder / "held.lock"
    whole = file.read_text()
    assert held("plan", "--locked", "held.yaml")[0] == 0
    step = len(whole) // 40
    for end in [*range(0, len(whole) - 1, step), whole.rindex("end"), len(whole) - 2]:
        file.write_text(whole[:end])
        with pytest.raises(PlanError, match=r"held\.lock: not a lock.*posttrain lock .*held\.yaml"):
            read_lock(file)
    code, output = held("plan", "--locked", "held.yaml")
    assert (code, "the end of the file is missing" in output) == (3, True)


@pytest.mark.parametrize(
    ("section", "content"),
    [
        ("steps", None),
        ("steps", ["words"]),
        ("steps", {"words": 3}),
        ("steps", {"words": {"key": "x"}}),
        ("sources", "x"),
        ("packages", None),
        ("code", 7),
    ],
)
def test_a_lock_with_a_section_that_is_none_says_which(held, section, content):
    file = held.folder / "held.lock"
    lock = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**lock, section: content}, sort_keys=False))
    code, output = held("plan", "--locked", "held.yaml")
    assert (code, f"not a lock: {section}" in output) == (3, True), output


def test_the_packages_are_those_that_are_needed():
    packages = find_needed_packages()
    assert {"torch", "numpy", "prefect", "pydantic", "pydantic-core"} <= set(packages)
    assert "pytest" not in packages
    assert "posttrain" not in packages
