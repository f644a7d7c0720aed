"""The rule about words that only their author understands: each has a better one in its field.

The rule reads documents, comments, identifiers and sentences of programs. A word counts in each part of an identifier (`has_patience`,
`HouseGuard`). `UNCLEAN` counts what is left where the rule came after the code; a number there can only become smaller.
"""

import re
from collections import defaultdict

#: A word, its forms, and what to write.
BANNED = {
    "house": "host, or the name of the type",
    "home": "the process, or where it is",
    "wish": "request",
    "teller": "reporter, or the sender",
    "news": "events, changes",
    "told": "notified, received (of events); known",
    "nobody": "no program, no thread, none",
    "stranger": "another process, user or host",
    "patience": "time-out",
    "picture": "snapshot",
}
FORMS = {form: word for word in BANNED for form in (word, f"{word}s", f"{word}es", f"{word}ed")}
PHRASES = [
    (re.compile(r"\bvoid\s+(?:place|entr)", re.IGNORECASE), "a vacant entry"),
    (re.compile(r"\b(?:former|previous|earlier|present|next)[ _](?:life|lives)\b", re.IGNORECASE), "an incarnation"),
]
PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
#: Names that are not ours to change: of the system, and a reason that scripts of users read.
KEPT = re.compile(r"\b(?:CARGO_)?HOME\b|ProtectHome|XDG_\w+_HOME|/home\b|\.home\(\)|cm_nobody_listens|CmNobodyListens|\"nobody\"")
ENDINGS = (".rs", ".md", ".py", ".c", ".h", ".sh", ".lua", ".bt", ".toml", ".service", ".socket", "Makefile")
#: The rule itself, and files that are not written here.
EXCEPT = ("scripts/tidy.d/words.py", "scripts/tidy.d/samples.py", "tests/programs/", "tests/mutants/", "fuzz/corpus/", "LICENSE")
UNCLEAN = "scripts/tidy.d/unclean.txt"


def places(text):
    """(line, word, better) of each banned word of a text."""
    for number, line in enumerate(text.split("\n"), start=1):
        line = KEPT.sub("", line)
        for part in PART.findall(line):
            word = FORMS.get(part.lower())
            if word:
                yield number, part, BANNED[word]
        for pattern, better in PHRASES:
            for m in pattern.finditer(line):
                yield number, m.group(), better


def words(tree):
    """Banned words stand nowhere but in the files of `UNCLEAN`, and there not more often than before."""
    unclean = {}
    if UNCLEAN in tree.files:
        rows = [line.split() for line in tree.read(UNCLEAN).split("\n") if line and not line.startswith("#")]
        unclean = {place: int(count) for place, count in rows}
    found = defaultdict(list)
    for path in tree.files:
        is_text = path.endswith(ENDINGS) or "." not in path.split("/")[-1]
        if not is_text or path.startswith(EXCEPT):
            continue
        above = next((place for place in unclean if path == place or path.startswith(f"{place}/")), None)
        for number, word, better in places(tree.read(path)):
            found[above].append((f"{path}:{number}", f'"{word}": write {better}'))
    yield from found.pop(None, [])
    for place, count in unclean.items():
        left = len(found[place])
        if left > count:
            yield place, f"{left} banned words; {UNCLEAN} has {count}, which can only become fewer"
            yield from found[place][:20]
        elif left < count:
            yield UNCLEAN, f"{place} has {left} banned words now: write {left or 'nothing'} instead of {count}"


RULES = [words]
