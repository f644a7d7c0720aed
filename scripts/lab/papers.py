"""The tables of experiments/papers: what each figure and table of five publications shows, what Burst has for it, and why they differ.

A paper is a file `PAPER.toml`; each figure or table of the publication is a row, `[[figure]]`. A number of ours is never written into a row. It comes from
one of three places, and a row only names the place:

* `take` (or `rows`): a run of the row's command, recorded as results/PAPER/FIGURE.json by `experiments/papers/run --record`;
* `history`: a figure of `make bench` (tests/bench/history.jsonl);
* `quote`: text that must occur in the section of a document that the row or the value names.

`faults` checks the tables, `pages` makes docs/papers of them; `scripts/tidy` and `scripts/documents` use both. docs/papers/README.md says what the fields mean.
"""

import json
import re
import tomllib
from functools import lru_cache

from lab import performance

FOLDER, PAGES, HISTORY = "experiments/papers", "docs/papers", "tests/bench/history.jsonl"
PAPERS = ("burst", "ucm", "srnic", "openurma", "proxy")
#: The states of a row, and what the index calls them.
STATES = {
    "number": "a number of ours",
    "part": "in part",
    "missing": "not built",
    "impossible": "cannot be had",
    "drawing": "a drawing or a list, no result",
}
HAS_NUMBER = ("number", "part")
FIELDS = {"id", "shows", "state", "why", "command", "page", "result", "quick", "rows", "noise", "value"}
VALUE_FIELDS = {"what", "paper", "artefact", "unit", "history", "quote", "page", "take", "where", "over", "scale", "why"}
SOURCES = ("history", "quote", "take")


def slug(name):
    """A figure's file name: `Figure 10a` is figure-10a."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def record_path(paper, figure):
    return f"{FOLDER}/results/{paper}/{slug(figure['id'])}.json"


class Tables:
    """The tables of a checkout, and the results that their numbers come from."""

    def __init__(self, tree):
        self.tree = tree
        self.papers = {p: tomllib.loads(tree.read(f"{FOLDER}/{p}.toml")) for p in PAPERS if f"{FOLDER}/{p}.toml" in tree.files}
        runs = [json.loads(line) for line in tree.read(HISTORY).splitlines() if line.strip()] if HISTORY in tree.files else []
        self.benches = performance.newest(runs) if runs else {}
        self.section = lru_cache(maxsize=None)(self._section)

    def record(self, paper, figure):
        """The recorded run of a figure, or None."""
        path = record_path(paper, figure)
        return json.loads(self.tree.read(path)) if path in self.tree.files else None

    def _section(self, page):
        """The text of a section (path, `#` and its anchor), up to the next heading of its rank; None if there is none. Without `#` the whole page."""
        path, _, anchor = page.partition("#")
        if path not in self.tree.files:
            return None
        lines = self.tree.read(path).split("\n")
        return "\n".join(lines) if not anchor else cut(lines, anchor)

    def values(self, paper, figure):
        """All rows of a figure's table: dictionaries with what, paper, artefact, ours, unit, origin, why; ours is None if it is not recorded."""
        record = self.record(paper, figure) or {"values": []}
        taken = {value["what"]: value for value in record["values"]}
        found = [self._value(figure, value, taken, record) for value in figure.get("value", [])]
        named = {value["what"] for value in figure.get("value", [])}
        return found + [{**value, "origin": origin(record)} for what, value in taken.items() if what not in named]

    def _value(self, figure, value, taken, record):
        row = {key: value.get(key) for key in ("what", "paper", "artefact")}
        row |= {"unit": value.get("unit", ""), "ours": None, "origin": "", "why": value.get("why", "")}
        if "history" in value and value["history"] in self.benches:
            row["ours"], row["unit"], _, commit = self.benches[value["history"]]
            row["origin"] = f"`make bench`, {commit}"
        elif "quote" in value:
            page = value.get("page", figure.get("page", ""))
            row["ours"], row["origin"] = value["quote"], link(page)
        elif value["what"] in taken:
            row["ours"], row["origin"] = taken[value["what"]]["ours"], origin(record)
        return row


def cut(lines, anchor):
    """The lines below the heading of an anchor, up to the next one of its rank; None if there is no such heading."""
    found, rank = None, 0
    for line in lines:
        if m := re.match(r"(#{1,6}) (.*)", line):
            if found is not None and len(m.group(1)) <= rank:
                break
            if found is None and re.sub(r"[^\w\- ]", "", m.group(2).replace("`", "").strip().lower()).replace(" ", "-") == anchor:
                found, rank = [], len(m.group(1))
        if found is not None:
            found.append(line)
    return None if found is None else "\n".join(found)


def occurs(quote, text):
    """Whether a number or words stand in a text, not as a part of a longer number or word."""
    return re.search(rf"(?<![\w.,]){re.escape(quote)}(?![\w]|[.,]\d)", text) is not None


def origin(record):
    return f"run{', few operations' if record.get('quick') else ''}, {record.get('commit', '')}"


def link(page):
    """A link from a page of docs/papers."""
    path, _, anchor = page.partition("#")
    name = path.removeprefix("docs/")
    return f"[{name}](../{name}{'#' + anchor if anchor else ''})"


def faults(tree):
    """(place, sentence) of what is wrong in the tables."""
    tables = Tables(tree)
    for paper, table in tables.papers.items():
        seen = set()
        for figure in table.get("figure", []):
            place = f"{FOLDER}/{paper}.toml: {figure.get('id', '?')}"
            sentences = [*form_faults(figure), *command_faults(tree, figure), *place_faults(tables, figure), *number_faults(tables, paper, figure)]
            if figure.get("id") in seen:
                sentences.append("there are two rows of this name")
            seen.add(figure.get("id"))
            yield from ((place, sentence) for sentence in sentences)


def form_faults(figure):
    """Missing and unknown fields."""
    yield from (f"the field {name} is missing" for name in ("id", "shows", "state") if not figure.get(name))
    yield from (f"there is no field {name}" for name in sorted(set(figure) - FIELDS))
    if figure.get("state") not in STATES:
        yield f"the state is none of {', '.join(STATES)}"
    if not figure.get("why") and figure.get("state") != "drawing":
        yield "the field why is missing"
    for value in figure.get("value", []):
        yield from (f"a value has no field {name}" for name in sorted(set(value) - VALUE_FIELDS))
        if sum(name in value for name in SOURCES) > 1:
            yield f"the value {value['what']} has several sources"


def command_faults(tree, figure):
    """A command is a target of the Makefile, or a program of the tree with parts and options that it knows."""
    words = figure.get("command", "").split()
    if not words:
        if figure.get("state") in HAS_NUMBER or "result" in figure:
            yield "the field command is missing"
        return
    if words[0] == "make":
        if "Makefile" not in tree.files or not re.search(rf"^{re.escape(words[1])}:", tree.read("Makefile"), re.MULTILINE):
            yield f"the Makefile has no target {words[1]}"
        return
    if words[0] not in tree.files:
        yield f"there is no program {words[0]}"
        return
    known = tree.read(words[0]) + (tree.read("experiments/urma/src/registry.rs") if words[0] == "experiments/urma/run" else "")
    for word in words[1:] + figure.get("quick", "").split():
        if re.match(r"-*[a-z]", word) and "," not in word and not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", known):
            yield f"{words[0]} knows no {word}"


def place_faults(tables, figure):
    """Pages and sections exist, and quotes occur in them."""
    if "page" in figure and tables.section(figure["page"]) is None:
        yield f"there is no section {figure['page']}"
    for value in figure.get("value", []):
        page = value.get("page", figure.get("page"))
        if "quote" in value:
            text = tables.section(page) if page else None
            if text is None:
                yield f"the value {value['what']}: there is no section {page}"
            elif not occurs(value["quote"], text):
                yield f"the value {value['what']}: {value['quote']} does not occur in {page}"
        if "history" in value and value["history"] not in tables.benches:
            yield f"the value {value['what']}: {HISTORY} has no figure {value['history']}"


def number_faults(tables, paper, figure):
    """A row has numbers of ours exactly if its state says so."""
    numbers = [value for value in tables.values(paper, figure) if value["ours"] is not None]
    if figure.get("state") in HAS_NUMBER and not numbers:
        yield "the state promises a number of ours, and there is none: experiments/papers/run --record"
    if figure.get("state") in STATES and figure["state"] not in HAS_NUMBER and numbers:
        yield f"the state is {figure['state']}, and there is a number of ours"
    if figure.get("state") in HAS_NUMBER and "page" not in figure and "result" not in figure:
        yield "the field page is missing"


def pages(tree):
    """(path, text) of docs/papers as it should be."""
    tables = Tables(tree)
    if tables.papers:
        yield f"{PAGES}/README.md", index_page(tables)
        yield from ((f"{PAGES}/{paper}.md", paper_page(tables, paper)) for paper in tables.papers)


INDEX = """# Figures of the five publications

A row for each figure and each table of the publications that Burst implements: what it shows, the command that makes ours, what the paper prints, what ours is, and
why they differ, or why there is none. `scripts/documents` writes these pages from `experiments/papers/PAPER.toml`; `scripts/tidy` checks that they are in step, that commands
and sections exist, and that each number of ours stands where the row says.

```
experiments/papers/run                          # all rows that a run gives; a JSON each in target/papers
experiments/papers/run openurma "Table 6"       # one row of one paper; --quick: fewer operations
experiments/papers/run --check                  # compare with the recorded run; exit code 1 if a number moved by more than its noise
experiments/papers/run --record                 # keep the results: experiments/papers/results, then scripts/documents
```
"""

MEANING = """
## How to read the pages
* *A number of ours*: for what the figure shows, if perhaps of another machine or scale. *In part*: for some of it. *Not built*: nothing here measures it yet. *Cannot be
  had*: it needs hardware or a program that is not here; the row says which. *A drawing or a list*: nothing to measure.
* Ours comes from a recorded run (`run`, with its commit; *few operations*: with `--quick`), from the history of `make bench`, or from a document's section (a link).
  No number of ours is written into a table by hand.
* *Paper*: what the publication's text prints. A number that it shows only as a curve is not guessed. *Its files* (OpenURMA only): what the publication's repository has.
* *Paper* may be a ratio of two numbers that the text prints, which the row names.
* *Ratio*: ours to the paper's. Times of a simulated interface can be compared; rates of this machine (two processors, no adapter) with those of a 400 Gbit/s adapter
  cannot, so there the rows compare ratios to a peer in the same run.

## Fields of a table
| field | meaning |
| --- | --- |
| `id`, `shows`, `state`, `why` | name in the publication, what it shows, one of the states, why ours differs or is not there |
| `command`, `quick` | program or Makefile target that makes ours; its option for a short run |
| `page` | document and section in which ours stands |
| `result` | JSON that the command writes; such rows are run by `experiments/papers/run` |
| `rows` | regular expression on `case, stack`: rows of a study that are taken as they are |
| `noise` | share by which a number may move before `--check` reports it (default 0.02) |
| `value` | a row of the figure's table: `what`, `paper`, `artefact` (its files), `unit`, and `take` with `where` and `over`, or `history`, or `quote` with `page` |
"""


def counts(table):
    states = [figure.get("state") for figure in table.get("figure", [])]
    return [len(states), *(states.count(state) for state in STATES)]


def index_page(tables):
    """docs/papers/README.md."""
    lines = [INDEX, "| publication | rows | " + " | ".join(STATES.values()) + " |", "| --- |" + " --- |" * (len(STATES) + 1)]
    total = [0] * (len(STATES) + 1)
    for paper, table in tables.papers.items():
        numbers = counts(table)
        total = [a + b for a, b in zip(total, numbers)]
        lines.append(f"| [{table['title']}]({paper}.md) | " + " | ".join(map(str, numbers)) + " |")
    lines.append("| all | " + " | ".join(map(str, total)) + " |")
    return "\n".join(lines) + "\n" + MEANING


def paper_page(tables, paper):
    """The page of a publication."""
    table = tables.papers[paper]
    numbers = counts(table)
    head = ", ".join(f"{count} {name}" for count, name in zip(numbers[1:], STATES.values()) if count)
    lines = [
        f"# {table['title']}: figures and tables", "", f"{table['source']}", "",
        f"`scripts/documents` writes this page from `{FOLDER}/{paper}.toml` and recorded runs. {numbers[0]} rows: {head}. [How to read it](README.md#how-to-read-the-pages).", "",
    ]  # fmt: skip
    for line in table.get("notes", []):
        lines += [f"* {line}"]
    lines += ["", "## All rows", "", "| | what it shows | ours | command | page |", "| --- | --- | --- | --- | --- |"]
    for figure in table.get("figure", []):
        command = f"`{figure['command']}`" if "command" in figure else ""
        lines.append(f"| {figure['id']} | {figure['shows']} | {STATES[figure['state']]} | {command} | {link(figure['page']) if 'page' in figure else ''} |")
    lines += ["", "## Numbers"]
    for figure in table.get("figure", []):
        if figure["state"] in HAS_NUMBER:
            lines += ["", f"### {figure['id']}: {figure['shows']}", "", *number_table(tables.values(paper, figure)), "", figure["why"]]
    lines += ["", "## Without a number of ours", "", "| | | why |", "| --- | --- | --- |"]
    lines += [f"| {f['id']} | {STATES[f['state']]} | {f['why']} |" for f in table.get("figure", []) if f["state"] in ("missing", "impossible")]
    return "\n".join(lines) + "\n"


def number_table(values):
    """The table of a figure; reasons that rows of a run have are numbered below it."""
    values = [value for value in values if value["ours"] is not None or value.get("paper") is not None]
    has_files = any(value.get("artefact") is not None for value in values)
    whys = list(dict.fromkeys(value["why"] for value in values if value.get("why")))
    head = ["", "paper", *(["its files"] if has_files else []), "ours", "ratio", *(["why"] if whys else []), "ours from"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for value in values:
        unit = value["unit"]
        cells = [value["what"], shown(value.get("paper"), unit)]
        cells += [shown(value.get("artefact"), unit)] if has_files else []
        cells += [shown(value["ours"], unit), ratio(value)]
        cells += [str(whys.index(value["why"]) + 1) if value.get("why") else ""] if whys else []
        lines.append("| " + " | ".join([*cells, value["origin"]]) + " |")
    return lines + ([""] + [f"{at}. {why}" for at, why in enumerate(whys, start=1)] if whys else [])


def shown(number, unit):
    """Four digits and the unit; text as it is; a dash for nothing."""
    if number is None:
        return "–"
    if isinstance(number, str):
        return f"{number} {unit}".strip() if re.fullmatch(r"[\d.,]+(, [\d.,]+)*", number) else number
    if unit in ("ratio", "times") and abs(number) < 1000:
        return f"{number:.3g} times"
    text = f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"
    return f"{text} {unit}".strip()


def ratio(value):
    """Ours to the paper's, else to its files'; empty if one of them is no number."""
    theirs = value.get("paper") if value.get("paper") is not None else value.get("artefact")
    try:
        ours = float(str(value["ours"]).replace(",", ""))
        return f"{ours / float(theirs):.3g}" if float(theirs) else ""
    except (TypeError, ValueError):
        return ""
