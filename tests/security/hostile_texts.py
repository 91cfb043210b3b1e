"""Recipes whose rules, bytes or overrides want too much."""

from collections.abc import Iterator

from tests.security.hostile_values import HEAD, Hostile


def of_schedules() -> Iterator[Hostile]:
    never = "BYMONTH=2;BYMONTHDAY=30"
    rules = [
        "FREQ=SECONDLY;BYMONTHDAY=31;BYSETPOS=366",
        "FREQ=SECONDLY",
        f"FREQ=SECONDLY;{never}",
        "FREQ=MINUTELY",
        f"FREQ=MINUTELY;INTERVAL=30;{never}",
        f"FREQ=HOURLY;{never}",
        f"FREQ=DAILY;{never}",
        f"FREQ=WEEKLY;{never}",
        f"FREQ=MONTHLY;{never}",
        f"FREQ=YEARLY;{never}",
        "FREQ=DAILY;BYSETPOS=2",
        "FREQ=DAILY;INTERVAL=0",
        "FREQ=DAILY;INTERVAL=7;BYDAY=TU",
        "FREQ=DAILY;INTERVAL=-1",
        f"FREQ=DAILY;INTERVAL={'9' * 900}",
        f"FREQ=DAILY;COUNT=999999;{never}",
        f"FREQ=DAILY;UNTIL=99991231T000000;{never}",
        "FREQ=DAILY;BYHOUR=²",
        "DTSTART:00010101T000000 RRULE:FREQ=DAILY",
        "RRULE:FREQ=DAILY EXRULE:FREQ=DAILY",
        "RRULE:FREQ=DAILY RRULE:FREQ=DAILY",
        f"RDATE:20990101T000000 RRULE:FREQ=DAILY;{never}",
        "FREQ=HOURLY;BYSETPOS=1",
        "FREQ=YEARLY;BYEASTER=400",
        f"FREQ=DAILY;BYHOUR={','.join(map(str, range(24)))};BYMINUTE={','.join(map(str, range(60)))}",
        "FREQ",
        "=",
        "a" * 9000,
        f"FREQ=HOURLY;BYMINUTE={','.join(map(str, range(60)))};{never}",
        f"RDATE:{'20200101T000000,' * 400}20200101T000000",
        "FREQ=YEARLY;BYWEEKNO=99",
        "DTSTART:99991231T000000 RRULE:FREQ=DAILY",
        "FREQ=DAILY;UNTIL=0",
        "RDATE:x",
        "EXDATE:x",
    ]
    yield from (Hostile(f"rrule {i}: {r[:40]}", f"schedule: {{rrule: '{r}'}}\n{HEAD}") for i, r in enumerate(rules))
    schedules = [
        "cron: '* * * * * *'",
        f"cron: '{'1,' * 9000}1 * * * *'",
        "cron: '0 0 31 2 *'",
        "cron: '² * * * *'",
        "cron: '99999999999999999999 * * * *'",
        "interval: 999999w",
        "interval: ٣m",
        "interval: 0m",
        "interval: -1h",
        "interval: 1" + "0" * 400 + "h",
        "timezone: ../../etc/passwd",
        "timezone: /dev/zero",
        r'timezone: "a\0b"',
        "on_change: ['path:']",
        f"on_change: [{'a, ' * 1900}]",
        "on_change: [mlflow:a@1]",
    ]
    yield from (Hostile(f"schedule {i}: {s[:40]}", f"schedule: {{{s}}}\n{HEAD}") for i, s in enumerate(schedules))


def of_bytes() -> Iterator[Hostile]:
    texts = {
        "empty": b"",
        "blank": b" \n",
        "nul": b"\0",
        "utf-16": HEAD.encode("utf-16"),
        "not utf-8": b"name: \xff\xfe\n",
        "latin 1": "name: é".encode("latin-1"),
        "two marks": b"\xef\xbb\xbf\xef\xbb\xbfname: a",
        "too large": b"#" * 1_000_001,
        "brackets": b"[" * 999_000,
        "braces": b"{a: " * 240_000,
        "dashes": b"- " * 400_000,
        "questions": b"? " * 400_000,
        "anchors": b"&a " * 300_000,
        "a long line": b"name: " + b"a" * 990_000,
        "a long key": b"a" * 990_000 + b": 1",
        "many keys": b"".join(b"k%d: 1\n" % i for i in range(49_000)),
        "quote": b"'" + b"x" * 990_000,
        "laughs": b"a: &a [x,x,x,x,x,x,x,x,x,x]\n"
        + b"".join(b"%c: &%c [%s]\n" % (c + 1, c + 1, b",".join([b"*%c" % c] * 10)) for c in range(97, 120)),
        "merged laughs": b"a: &a {k: 1}\n"
        + b"".join(
            b"%c: &%c {<<: [%s], k%c: 1}\n" % (c + 1, c + 1, b",".join([b"*%c" % c] * 10), c) for c in range(97, 120)
        ),
        "a circle of anchors": b"a: &a [*a]\n",
        "a merge of itself": b"a: &a {<<: *a}\n",
        "merge of a list": b"<<: [1]\n",
        "explicit long key": b"? " + b"k" * 900_000 + b"\n: 1\n",
        "directive": b"%YAML " * 100_000,
        "tabs": b"\t" * 900_000,
        "tag": b"!!python/object/apply:os.system ['id']\n",
        "two documents": b"a: 1\n---\nb: 1\n",
        "escape": b'a: "\\ud800"\n',
        "key of a map": b"{a: 1}: 2\n",
        "key twice": b"a: 1\na: 2\n",
        "a list": b"- a\n",
        "number": b"7\n",
        "comment": b"# a\n" * 200_000,
        "block text": b"a: |\n" + b"  x\n" * 240_000,
        "long block key": b"? |\n" + b"  x\n" * 100_000 + b": 1\n",
        "reference to nothing": b"a: *b\n",
        "colons": b": " * 300_000,
        "folded": b"a: >\n" + b"  x\n" * 240_000,
        "flow lines": b"a: [\n" + b"1,\n" * 300_000 + b"]",
        "numbers": b"stages: {a: {kind: init, config: {hidden_size: " + b"9" * 900_000 + b"}}}",
    }
    yield from (Hostile(f"bytes: {name}", text) for name, text in texts.items())


def of_overrides() -> Iterator[Hostile]:
    for text in (
        ".².",
        "=",
        "a",
        "",
        "stages.base.².x=1",
        "stages.problems.problems.²=1",
        "stages.problems.problems.9=1",
        "stages.problems.problems.-1=1",
        "tags.0=1",
        "stages.base.max_length=1e999",
        "stages.base.max_length=" + "9" * 5000,
        "a." * 5000 + "b=1",
        "stages.base.config." + "a." * 80 + "b=1",
        "stages.base.config=" + "[" * 5000,
        "stages.base.config={hidden_size: " + "x" * 120_000 + "}",
        "name=\udc80",
        "na\udc80me=1",
        "stages.base=&a [*a]",
        "vars=1",
        "stages.base.max_length=!!python/object:os.system x",
        "stages.base.kind=" + "k" * 100_000,
        "=" * 1000,
        "k" * 100_000 + "=1",
        "profiles.x.y=1",
        "extends=/dev/zero",
        "stages.base.tokenizer.\0=1",
    ):
        yield Hostile(f"--set {text[:30]!r}", HEAD, overrides=(text,))
    yield Hostile("ten thousand overrides", HEAD, overrides=("stages.base.max_length=64",) * 10_000)
