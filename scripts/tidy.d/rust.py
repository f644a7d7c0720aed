"""A lexer for Rust that is exact enough for counting: comments, strings, functions, items, imports.

`Source` keeps two texts of equal length: `text`, the file, and `code`, in which comments and the contents of strings and characters
are spaces. Rules search `code`, so that a brace in a string or a word in a comment is never found. Line and column of a match
are those of the file.
"""

import bisect
import re
from functools import cached_property

RAW_STRING = re.compile(r'(?:br|cr|r)(#*)"')
CHARACTER = re.compile(r"b?'(?:\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.)|[^'\\])'", re.DOTALL)
ITEM = re.compile(r"\b(struct|enum|trait|union)\s+([A-Za-z_]\w*)")
FUNCTION = re.compile(r"\bfn\s+([A-Za-z_]\w*)")
MODULE = re.compile(r"\bmod\s+([a-z_]\w*)\s*([;{])")
CFG = re.compile(r"#!?\[cfg\b")
OPENING = "([{"


class Source:
    """One Rust file."""

    def __init__(self, path, text):
        self.path, self.text = path, text
        self.comments = []  # (start, end) offsets
        self.measures = {}  # of structure.py
        self.code = self._blank()
        self._lines = [0] + [m.end() for m in re.finditer("\n", text)]

    def line(self, offset):
        """Number of the line of an offset, from 1."""
        return bisect.bisect_right(self._lines, offset)

    def _blank(self):
        text, out, at = self.text, list(self.text), 0
        while at < len(text):
            two = text[at : at + 2]
            if two == "//":
                end = text.find("\n", at)
                end = len(text) if end < 0 else end
                self.comments.append((at, end))
            elif two == "/*":
                end = self._block_comment_end(at)
                self.comments.append((at, end))
            elif self._starts_word(at) and (raw := RAW_STRING.match(text, at)):
                closing = '"' + raw.group(1)
                end = text.find(closing, raw.end())
                end = len(text) if end < 0 else end + len(closing)
            elif text[at] == '"' or (self._starts_word(at) and text[at : at + 2] in ('b"', 'c"')):
                end = self._string_end(text.index('"', at))
            elif text[at] in "b'" and self._starts_word(at) and (char := CHARACTER.match(text, at)):
                end = char.end()
            else:
                at += 1
                continue
            for i in range(at, end):
                if out[i] != "\n":
                    out[i] = " "
            at = end
        return "".join(out)

    def _starts_word(self, at):
        return at == 0 or not (self.text[at - 1].isalnum() or self.text[at - 1] == "_")

    def _block_comment_end(self, at):
        depth = 0
        for m in re.finditer(r"/\*|\*/", self.text[at:]):
            depth += 1 if m.group() == "/*" else -1
            if depth == 0:
                return at + m.end()
        return len(self.text)

    def _string_end(self, quote):
        at = quote + 1
        while at < len(self.text):
            if self.text[at] == "\\":
                at += 2
            elif self.text[at] == '"':
                return at + 1
            else:
                at += 1
        return len(self.text)

    @cached_property
    def _pairs(self):
        """Offset of the other bracket by the offset of a bracket, both ways."""
        pairs, open_ones = {}, []
        for m in re.finditer(r"[][(){}]", self.code):
            if m.group() in OPENING:
                open_ones.append(m.start())
            elif open_ones:
                opening = open_ones.pop()
                pairs[opening], pairs[m.start()] = m.start(), opening
        return pairs

    def closing(self, opening):
        """Offset of the bracket that closes the one at `opening`."""
        return self._pairs.get(opening, len(self.code))

    def opening(self, closing):
        """Offset of the bracket that the one at `closing` closes."""
        return self._pairs.get(closing, 0)

    def body(self, at):
        """(opening, closing) of the braces that follow a signature at `at`, or None if a semicolon ends it."""
        while at < len(self.code):
            c = self.code[at]
            if c == ";":
                return None
            if c == "{":
                return at, self.closing(at)
            at = self.closing(at) + 1 if c in "([" else at + 1
        return None

    @cached_property
    def functions(self):
        """(name, first line, last line, opening, closing) of each function with a body."""
        found = []
        for m in FUNCTION.finditer(self.code):
            body = self.body(m.end())
            if body:
                found.append((m.group(1), self.line(m.start()), self.line(body[1]), *body))
        return found

    @cached_property
    def test_ranges(self):
        """(start, end) of modules under `#[cfg(test)]` and of inline modules called `tests`."""
        return [(start, end) for name, start, end, cfg in self.inline_modules if "test" in cfg or name == "tests"]

    @cached_property
    def inline_modules(self):
        """(name, opening, closing, text of its cfg attributes) of each `mod name { … }`."""
        found = []
        for m in MODULE.finditer(self.code):
            if m.group(2) == "{":
                opening = m.end() - 1
                found.append((m.group(1), opening, self.closing(opening), self.cfg_before(m.start())))
        return found

    @cached_property
    def declared_modules(self):
        """(name, text of its cfg attributes, text of its path attribute) of each `mod name;` outside of inline modules."""
        found = []
        for m in MODULE.finditer(self.code):
            if m.group(2) == ";" and not any(o < m.start() < c for _, o, c, _ in self.inline_modules):
                attributes = self.attributes_before(m.start())
                path = re.search(r'path\s*=\s*"([^"]+)"', attributes)
                found.append((m.group(1), self.cfg_before(m.start()), path.group(1) if path else None))
        return found

    def attributes_before(self, at):
        """The text of the attributes of the item at `at`."""
        start = max(self.code.rfind(c, 0, at) for c in ";{}") + 1
        return "".join(self.text[m.start() : self.closing(m.end() - 1) + 1] for m in re.finditer(r"#\[", self.code[:at]) if m.start() >= start)

    def cfg_before(self, at):
        """The `cfg` attributes of the item at `at`, as text; empty if there is none."""
        attributes = self.attributes_before(at)
        return attributes if CFG.search(attributes) else ""
