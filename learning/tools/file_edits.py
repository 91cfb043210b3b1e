"""Commands of an editor on the files of a repository, as the environment `repo` reads them."""

from collections.abc import Mapping

LARGEST = 65_536
"""Most characters of all files together."""
MOST = 200
"""Most files."""
HELP = "commands: ls, cat FILE, edit FILE LINE TEXT, replace FILE LINE OLD => NEW, write FILE TEXT, test, submit"


def apply_command(files: Mapping[str, str], action: str) -> tuple[dict[str, str], str, bool]:
    """Return the files after a command, what it shows, and whether it could be carried out.

    `ls` lists files, `cat FILE` shows one with numbers of lines, `edit FILE LINE TEXT` replaces a line, or adds one
    behind the last, `replace FILE LINE OLD => NEW` replaces the first OLD of a line, `write FILE TEXT` replaces a file
    or adds one, whose text may begin on the next line.
    """
    verb, _, rest = action.partition(" ")
    name = rest.split(maxsplit=1)[0] if rest.strip() else ""
    text = rest.lstrip()[len(name) + 1 :]
    unchanged = dict(files)
    if verb == "ls":
        return unchanged, "\n".join(sorted(files)), True
    if verb == "cat":
        if (path := rest.strip()) not in files:
            return unchanged, f"{path}: no such file", False
        lines = files[path].splitlines()
        return unchanged, "\n".join(f"{number} {line}" for number, line in enumerate(lines, 1)), True
    if verb == "write":
        return _store(unchanged, name, f"{text.strip(chr(10))}\n")
    if verb in ("edit", "replace"):
        if name not in files:
            return unchanged, f"{name}: no such file", False
        number, _, text = text.partition(" ")
        lines = files[name].splitlines()
        if not (number.isascii() and number.isdigit() and len(number) < 7 and 1 <= int(number) <= len(lines) + 1):
            return unchanged, f"{name} has lines 1 to {len(lines)}", False
        place = slice(int(number) - 1, int(number))
        if verb == "replace":
            old, arrow, new = text.partition(" => ")
            line = "".join(lines[place])
            if not arrow or not old or old not in line:
                return unchanged, f"line {number} has no such text; write OLD => NEW", False
            text = line.replace(old, new, 1)
        lines[place] = text.split("\n")
        return _store(unchanged, name, "".join(f"{line}\n" for line in lines))
    return unchanged, HELP, False


def _store(files: dict[str, str], name: str, text: str) -> tuple[dict[str, str], str, bool]:
    """Return the files with another text of one of them; a name that is no path in the repository is refused."""
    parts = name.split("/")
    if not name.isprintable() or any(part in ("", ".", "..") for part in parts) or len(name) > 200:
        return files, f"`{name[:80]}` is no name of a file", False
    if any(path.startswith(f"{name}/") or name.startswith(f"{path}/") for path in files):
        return files, f"{name}: a folder and a file cannot have the same name", False
    changed = files | {name: text}
    if len(changed) > MOST or sum(map(len, changed.values())) > LARGEST:
        return files, "there is no room for more", False
    return changed, "saved", True
