"""Recipes that want too much: each a folder's worth of files, made here, so that none of megabytes lies in the tree."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.security.hostile_values import RICH, VALUES, paths, replaced

HEAD = """schema_version: 1
name: hostile
stages:
  base: {kind: init}
  problems: {kind: synthesize, emit: prompts, problems: [{use: reasoning_gym, family: chain_sum, size: 9, split: train}]}
"""
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


def hostile_recipes() -> Iterator[Hostile]:
    """All of them: written ones first, then every value of a rich recipe replaced by every hostile one."""
    yield from _that_grow()
    yield from _of_parents()
    yield from _of_schedules()
    yield from _of_bytes()
    yield from _of_many_errors()
    yield from _of_nonsense()
    yield from _of_overrides()
    yield from _replaced()


def _that_grow() -> Iterator[Hostile]:
    big = "x" * 90_000
    tags = ", ".join(['"${vars.big} ${vars.big}"'] * 20_000)
    yield Hostile("tags of a big variable", f"vars: {{big: {big}}}\ntags: [{tags}]\n{HEAD}")
    tags = ", ".join(['"${vars.big}"'] * 1500)
    yield Hostile("tags that are a big variable", f"vars: {{big: {big}}}\ntags: [{tags}]\n{HEAD}")
    yield Hostile("aliases of a big text", f"x-a: &a {'x' * 800_000}\ntags: [{'*a, ' * 1500}]\n{HEAD}")
    doubled = "".join(f"  v{i}: ['${{vars.v{i - 1}}}', '${{vars.v{i - 1}}}']\n" for i in range(1, 40))
    yield Hostile("variables that double", f"vars:\n  v0: [1]\n{doubled}{HEAD}")
    doubled = "".join(f"  v{i}: '${{vars.v{i - 1}}}${{vars.v{i - 1}}}'\n" for i in range(1, 40))
    yield Hostile("texts that double", f"vars:\n  v0: abc\n{doubled}{HEAD}")
    deep = "".join(f"  v{i}: {'[' * 30}'${{vars.v{i - 1}}}'{']' * 30}\n" for i in range(1, 30))
    yield Hostile("variables that nest", f"vars:\n  v0: 1\n{deep}tags: ['${{vars.v29}}']\n{HEAD}")
    chain = "".join(f"  v{i}: ${{vars.v{i + 1}}}\n" for i in range(1000)) + "  v1000: 1\n"
    yield Hostile("a chain of variables", f"vars:\n{chain}{HEAD}")
    yield Hostile("a wide variable, many times", f"vars: {{w: [{'1, ' * 1900}]}}\n{HEAD}" + "".join(
        f"  e{i}: {{kind: python, function: {{use: 'os:getcwd', a: '${{vars.w}}'}}}}\n" for i in range(500)))  # fmt: skip
    axes = ", ".join(f"a{i}: [{', '.join(map(str, range(16)))}]" for i in range(8))
    yield Hostile("axes of a matrix", f"{HEAD}  s: {{kind: sft, model: base, data: problems, matrix: {{{axes}}}}}\n")
    lonely = ", ".join(f"axis_number_{i}: [value]" for i in range(1500))
    yield Hostile("axes of one value", f"{HEAD}  s: {{kind: sft, model: base, data: problems, matrix: {{{lonely}}}}}\n")
    for count, wide, stages in ((100, 256, 40), (100, 1, 11), (100, 256, 1), (2, 256, 2), (100, 100, 100)):
        values = ", ".join(map(str, range(wide)))
        inner = "".join(
            f"        s{i}: {{kind: sft, model: base, data: problems, matrix: {{a: [{values}]}}}}\n" for i in range(stages)
        )
        loop = f"  loop:\n    repeat:\n      max: {count}\n      stages:\n{inner}"
        yield Hostile(f"a loop of {count} x {wide} x {stages}", HEAD + loop)
    values = ", ".join(map(str, range(250)))
    fans = "".join(f"  s{i}: {{kind: sft, model: base, data: problems, matrix: {{a: [{values}]}}}}\n" for i in range(3))
    models = ", ".join(f"m{i}: s{i % 3}" for i in range(1800))
    yield Hostile("variants in every model", f"{HEAD}{fans}  e: {{kind: evaluate, models: {{{models}}}, prompts: problems}}\n")
    many = "".join(f"  s{i}: {{kind: init}}\n" for i in range(1001))
    yield Hostile("a thousand and one stages", HEAD + many)
    yield Hostile("an endpoint in many places", "endpoints: {t: {base_url: 'http://h/v1', model: m, extra: {a: ["
                  + "1, " * 1900 + "]}}}\n" + HEAD + "".join(
        f"  e{i}: {{kind: evaluate, model: base, prompts: problems, rewards: [{{use: judges.endpoint, endpoint: t}}]}}\n"
        for i in range(300)))  # fmt: skip
    tasks = ", ".join(f"{{use: reasoning_gym, family: chain_sum, size: {i}, split: test}}" for i in range(1, 400))
    evals = "".join(f"  e{i}: {{kind: evaluate, model: base, tasks: [{tasks.replace('test', 'train') if i % 2 else tasks}]}}\n"
                    for i in range(8))  # fmt: skip
    clean = "".join(f"  c{i}: {{kind: curate, data: problems}}\n" for i in range(300))
    yield Hostile("every curation against every task", HEAD + evals + clean, refused=False)
    backwards = "".join(f"  s{i}: {{kind: sft, model: {f's{i + 1}' if i < 990 else 'base'}, data: problems}}\n" for i in range(991))
    yield Hostile("a chain of stages, written backwards", HEAD + backwards)
    after = "".join(f"  s{i}: {{kind: init, after: [{', '.join(f's{j}' for j in range(i))}]}}\n" for i in range(300))
    yield Hostile("every stage after all others", HEAD + after)
    yield Hostile("a matrix of long values", f"{HEAD}  s: {{kind: init, matrix: {{a: ['{'x' * 100_000}', b]}}}}\n", refused=False)


def _of_parents() -> Iterator[Hostile]:
    levels = {f"e{i}.yaml": f"extends: [e{i + 1}.yaml, e{i + 1}.yaml]\n" for i in range(24)} | {"e24.yaml": HEAD}
    yield Hostile("a diamond of 24 levels", "extends: [e0.yaml, e0.yaml]\n", levels, refused=False)
    chain = {f"e{i}.yaml": f"extends: e{i + 1}.yaml\n" for i in range(100)} | {"e100.yaml": HEAD}
    yield Hostile("a hundred parents", "extends: e0.yaml\n", chain)
    yield Hostile("one parent a thousand times", f"extends: [{'e.yaml, ' * 1000}]\n", {"e.yaml": HEAD})
    wide = "x-a:\n" + "".join(f"  k{i}: {i}\n" for i in range(1900))
    yield Hostile("a wide parent, often", f"extends: [{'e.yaml, ' * 60}]\n", {"e.yaml": wide + HEAD})
    big = "".join(f"x-{j}: [{'1, ' * 1900}]\n" for j in range(25))
    yield Hostile("large parents", "extends: [a.yaml, b.yaml, c.yaml]\n", {f"{n}.yaml": big + HEAD for n in "abc"})
    yield Hostile("itself", "extends: r.yaml\n")
    yield Hostile("two in a circle", "extends: e.yaml\n", {"e.yaml": "extends: r.yaml\n"})
    wrong = ["/dev/zero", "/dev/stdin", "/dev/tty", "/dev/full", "/proc/self/mem", "/proc/kmsg", "/proc/self/environ", ".",
             "..", "/", "~", "''", "null", "7", "{a: 1}", "[[]]", r'"a\0b"', "a" * 5000, "a/" * 3000, "/etc/shadow",
             "../" * 200 + "etc/passwd", r'"\n"', "pipe", "circle", "nowhere", "socket", "r.yaml/x"]  # fmt: skip
    for index, target in enumerate(wrong):
        yield Hostile(f"extends {index}: {target[:20]}", f"extends: {target}\n{HEAD}", refused=target not in ("''", "null"))


def _of_schedules() -> Iterator[Hostile]:
    never = "BYMONTH=2;BYMONTHDAY=30"
    rules = [
        "FREQ=SECONDLY;BYMONTHDAY=31;BYSETPOS=366", "FREQ=SECONDLY", f"FREQ=SECONDLY;{never}", "FREQ=MINUTELY",
        f"FREQ=MINUTELY;INTERVAL=30;{never}", f"FREQ=HOURLY;{never}", f"FREQ=DAILY;{never}", f"FREQ=WEEKLY;{never}",
        f"FREQ=MONTHLY;{never}", f"FREQ=YEARLY;{never}", "FREQ=DAILY;BYSETPOS=2", "FREQ=DAILY;INTERVAL=0",
        "FREQ=DAILY;INTERVAL=7;BYDAY=TU", "FREQ=DAILY;INTERVAL=-1", f"FREQ=DAILY;INTERVAL={'9' * 900}",
        f"FREQ=DAILY;COUNT=999999;{never}", f"FREQ=DAILY;UNTIL=99991231T000000;{never}", "FREQ=DAILY;BYHOUR=²",
        "DTSTART:00010101T000000 RRULE:FREQ=DAILY", "RRULE:FREQ=DAILY EXRULE:FREQ=DAILY", "RRULE:FREQ=DAILY RRULE:FREQ=DAILY",
        f"RDATE:20990101T000000 RRULE:FREQ=DAILY;{never}", "FREQ=HOURLY;BYSETPOS=1", "FREQ=YEARLY;BYEASTER=400",
        f"FREQ=DAILY;BYHOUR={','.join(map(str, range(24)))};BYMINUTE={','.join(map(str, range(60)))}", "FREQ", "=", "a" * 9000,
        f"FREQ=HOURLY;BYMINUTE={','.join(map(str, range(60)))};{never}", f"RDATE:{'20200101T000000,' * 400}20200101T000000",
        "FREQ=YEARLY;BYWEEKNO=99", "DTSTART:99991231T000000 RRULE:FREQ=DAILY", "FREQ=DAILY;UNTIL=0", "RDATE:x", "EXDATE:x",
    ]  # fmt: skip
    yield from (Hostile(f"rrule {i}: {r[:40]}", f"schedule: {{rrule: '{r}'}}\n{HEAD}") for i, r in enumerate(rules))
    said = ["cron: '* * * * * *'", f"cron: '{'1,' * 9000}1 * * * *'", "cron: '0 0 31 2 *'", "cron: '² * * * *'",
            "cron: '99999999999999999999 * * * *'", "interval: 999999w", "interval: ٣m", "interval: 0m", "interval: -1h",
            "interval: 1" + "0" * 400 + "h", "timezone: ../../etc/passwd", "timezone: /dev/zero", r'timezone: "a\0b"',
            "on_change: ['path:']", f"on_change: [{'a, ' * 1900}]", "on_change: [mlflow:a@1]"]  # fmt: skip
    yield from (Hostile(f"schedule {i}: {s[:40]}", f"schedule: {{{s}}}\n{HEAD}") for i, s in enumerate(said))


def _of_bytes() -> Iterator[Hostile]:
    texts = {
        "empty": b"", "blank": b" \n", "nul": b"\0", "utf-16": HEAD.encode("utf-16"), "not utf-8": b"name: \xff\xfe\n",
        "latin 1": "name: é".encode("latin-1"), "two marks": b"\xef\xbb\xbf\xef\xbb\xbfname: a", "too large": b"#" * 1_000_001,
        "brackets": b"[" * 999_000, "braces": b"{a: " * 240_000, "dashes": b"- " * 400_000, "questions": b"? " * 400_000,
        "anchors": b"&a " * 300_000, "a long line": b"name: " + b"a" * 990_000, "a long key": b"a" * 990_000 + b": 1",
        "many keys": b"".join(b"k%d: 1\n" % i for i in range(49_000)), "quote": b"'" + b"x" * 990_000,
        "laughs": b"a: &a [x,x,x,x,x,x,x,x,x,x]\n"
        + b"".join(b"%c: &%c [%s]\n" % (c + 1, c + 1, b",".join([b"*%c" % c] * 10)) for c in range(97, 120)),
        "merged laughs": b"a: &a {k: 1}\n" + b"".join(
            b"%c: &%c {<<: [%s], k%c: 1}\n" % (c + 1, c + 1, b",".join([b"*%c" % c] * 10), c) for c in range(97, 120)),
        "a circle of anchors": b"a: &a [*a]\n", "a merge of itself": b"a: &a {<<: *a}\n", "merge of a list": b"<<: [1]\n",
        "explicit long key": b"? " + b"k" * 900_000 + b"\n: 1\n", "directive": b"%YAML " * 100_000, "tabs": b"\t" * 900_000,
        "tag": b"!!python/object/apply:os.system ['id']\n", "two documents": b"a: 1\n---\nb: 1\n", "escape": b'a: "\\ud800"\n',
        "key of a map": b"{a: 1}: 2\n", "key twice": b"a: 1\na: 2\n", "a list": b"- a\n", "number": b"7\n", "comment": b"# a\n" * 200_000,
        "block text": b"a: |\n" + b"  x\n" * 240_000, "long block key": b"? |\n" + b"  x\n" * 100_000 + b": 1\n",
        "reference to nothing": b"a: *b\n", "colons": b": " * 300_000, "folded": b"a: >\n" + b"  x\n" * 240_000,
        "flow lines": b"a: [\n" + b"1,\n" * 300_000 + b"]", "numbers": b"stages: {a: {kind: init, config: {a: " + b"9" * 900_000 + b"}}}",
    }  # fmt: skip
    yield from (Hostile(f"bytes: {name}", text) for name, text in texts.items())


def _of_many_errors() -> Iterator[Hostile]:
    def evaluation(tasks: str) -> str:
        return f"{HEAD}  e: {{kind: evaluate, model: base, tasks: [{tasks}]}}\n"

    for count in (1500, 8000):
        yield Hostile(f"{count} wrong tasks", evaluation(", ".join(f"{{usee: gym{i}}}" for i in range(count))))
        yield Hostile(f"{count} unknown tasks", evaluation(", ".join(f"reasoning_gymm{i}" for i in range(count))))
        yield Hostile(f"{count} wrong options", evaluation(", ".join(
            f"{{use: reasoning_gym, famly: a, size: b, split{i}: c}}" for i in range(count))))  # fmt: skip
        yield Hostile(f"{count} unknown keys", f"{HEAD}  e: {{kind: sft, {', '.join(f'learning_ratte{i}: 1' for i in range(count))}}}\n")
        yield Hostile(f"{count} unknown stages", f"{HEAD}  e: {{kind: init, after: [{', '.join(f'bass{i}' for i in range(count))}]}}\n")
        yield Hostile(f"{count} wrong components", f"{HEAD}  e: {{kind: rl, model: base, prompts: problems, max_steps: 1, "
                      f"rewards: [answers.exact], algorithm: grpo, components: [{', '.join(['{use: kl, coef: [a]}'] * count)}]}}\n")  # fmt: skip
    long = [f"{'a' * 60}{i}" for i in range(900)]
    yield Hostile("long names and words like them", "stages:\n" + "".join(f"  {n}: {{kind: init, after: [{n}x]}}\n" for n in long))
    yield Hostile("stages without a kind", "stages:\n" + "".join(f"  s{i}: {{}}\n" for i in range(990)))
    yield Hostile("kinds like kinds", "stages:\n" + "".join(f"  s{i}: {{kind: evaluat{i}}}\n" for i in range(990)))
    yield Hostile("a word like two thousand variables", "vars: {" + ", ".join(f"{'v' * 80}{i}: 1" for i in range(1900))
                  + "}\n" + HEAD + "  s: {kind: '${vars." + "v" * 85 + "}'}\n")  # fmt: skip
    yield Hostile("unknown functions of many modules", evaluation(", ".join(f"'{m}:f'" for m in _modules())))


def _modules() -> list[str]:
    large = ["typing", "argparse", "tarfile", "inspect", "socket", "turtle", "doctest", "pydoc", "ssl", "subprocess", "zipfile",
             "datetime", "decimal", "enum", "logging", "pathlib", "pickle", "pdb", "random", "smtplib", "statistics", "threading"]
    return large + [f"email.{m}" for m in ("message", "header", "charset", "parser")] + [f"no_module_{i}" for i in range(300)]  # fmt: skip


def _of_nonsense() -> Iterator[Hostile]:
    rl = {"algorithm": "algorithm: grpo", "rewards": "rewards: [answers.exact]", "max_steps": "max_steps: 1"}
    said = ["algorithm: {a: 1}", "algorithm: [grpo]", "algorithm: 7", "temperature: 1e308", "temperature: 101", "max_steps: 1e9999",
            "learning_rate: 1e300", "num_generations: 9000000000000000000", "drive: {use: start, running: -1}",
            "rewards: [{use: formats.matches, pattern: '(('}]", "rewards: [{use: formats.matches, pattern: '[[a]'}, 7]",
            f"rewards: [{{use: formats.matches, pattern: '{'(' * 3000}'}}]", "rewards: [{use: formats.matches, pattern: 'a{99999999999}'}]",
            f"rewards: [{{use: formats.matches, pattern: '(?i){'[a-z]' * 150}'}}]", "resources: {memory: '" + "9" * 400 + "GB'}",
            "resources: {num_cpus: 1e308}", "resources: {rollout: {workers: 1000000000}}", "timeout: 1e300", "retries: -1",
            "seed: 99999999999", "rewards: [{use: '\u0663:f'}]", "rewards: [{use: ':'}]", "rewards: [{use: '..'}]"]  # fmt: skip
    for index, one in enumerate(said):
        keys = ", ".join((rl | {one.partition(":")[0]: one}).values())
        yield Hostile(f"rl {index}: {one[:50]}", f"{HEAD}  s: {{kind: rl, model: base, prompts: problems, {keys}}}\n")
    sizes = ["many", "-1", "0", "1.5", "true", "[1]", "{a: 1}", "'64'", "1000000000", "1e308", "''"]
    for key in ("hidden_size", "num_hidden_layers", "vocab_size"):
        for size in sizes:
            yield Hostile(f"{key}: {size}", f"name: a\nstages: {{base: {{kind: init, config: {{model_type: qwen3, {key}: {size}}}}}}}\n")
    loop = "  l: {{repeat: {{max: 2, until: '{}', stages: {{e: {{kind: evaluate, model: base, prompts: problems}}}}}}}}\n"
    for until in ("e.accuracy > 1e999", "e.accuracy > .", "e.accuracy > 1" + "0" * 500, "e.accuracy > ²", " " * 50_000, "a" * 90_000,
                  "e" + ".a" * 40_000 + " > 1", "> 1", "e.accuracy >> 1", "e.accuracy > nan"):  # fmt: skip
        yield Hostile(f"until {until[:20]}", HEAD + loop.format(until))


def _of_overrides() -> Iterator[Hostile]:
    for text in (".².", "=", "a", "", "stages.base.².x=1", "stages.problems.problems.²=1", "stages.problems.problems.9=1",
                 "stages.problems.problems.-1=1", "tags.0=1", "stages.base.max_length=1e999", "stages.base.max_length=" + "9" * 5000,
                 "a." * 5000 + "b=1", "stages.base.config." + "a." * 40 + "b=1", "stages.base.config=" + "[" * 5000,
                 "stages.base.config={a: " + "x" * 120_000 + "}", "name=\udc80", "na\udc80me=1", "stages.base=&a [*a]", "vars=1",
                 "stages.base.max_length=!!python/object:os.system x", "stages.base.kind=" + "k" * 100_000, "=" * 1000,
                 "k" * 100_000 + "=1", "profiles.x.y=1", "extends=/dev/zero", "stages.base.tokenizer.\0=1"):  # fmt: skip
        yield Hostile(f"--set {text[:30]!r}", HEAD, overrides=(text,))
    yield Hostile("ten thousand overrides", HEAD, overrides=("stages.base.max_length=64",) * 10_000)


def _replaced() -> Iterator[Hostile]:
    tree = yaml.safe_load(RICH)
    for path in paths(tree):
        for name, value in VALUES.items():
            yield Hostile(f"{'.'.join(map(str, path))} = {name}", replaced(tree, path, value), refused=False)


def sampled(count: int, seed: int) -> list[Hostile]:
    """The written ones, and some of the others: at least `count` in all."""
    everything = list(hostile_recipes())
    written = [one for one in everything if " = " not in one.name]
    others = [one for one in everything if " = " in one.name]
    return written + random.Random(seed).sample(others, max(0, count - len(written)))
