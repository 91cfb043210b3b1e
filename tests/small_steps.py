"""A step that writes a number, and a recipe of two of them, for tests that are about something else."""

NUMBER = """
def number(context, *, value: int = 1):
    (context.output("result") / "n.txt").write_text(str(value))
    return {"value": value}
"""


def two_numbers(name, module, more=""):
    """A recipe: `a` writes 3, `b` reads it and writes 4, with `number` of a module; `more` are further lines of it."""
    return f"""
name: {name}
{more}
stages:
  a: {{kind: python, function: {{use: "{module}:number", value: 3}}}}
  b: {{kind: python, function: {{use: "{module}:number", value: 4}}, inputs: {{x: a}}}}
"""
