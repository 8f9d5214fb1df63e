"""What stands where in a text: headings and tables as Markdown writes them, with code left alone.

Only what matters to a splitter is read, in one pass, by the rules of CommonMark and of GitHub's tables: `#`
headings and underlined ones, numbered ones where they are asked for, tables with their row of dashes. Nothing
counts inside a fence of code, which goes to the end of the text where it is not closed, or inside front matter.
Page breaks (form feeds) end lines as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Heading", "Marks", "Table", "read_marks"]

_LONGEST = 300  # characters; a line that is longer is no heading
_LINE = r"(?:^|(?<=\f))[ ]{0,3}(?:"
_ATX = r"#{1,6}[ \t]+(?P<title>[^\n\f]*)"
_FENCE = r"(?P<fence>`{3,}|~{3,})(?P<info>[^\n\f]*)"
_RULE = r"(?P<rule>[-=|:][-=|: \t]*)\r?(?=[\n\f]|\Z)"
_NUMBERED = r"(?P<number>\d{1,3}(?:\.\d{1,3}){0,5})\.?[ \t]+(?P<name>[^\n\f]{1,120})(?=[\n\f]|\Z)"
_PLAIN = re.compile(f"{_LINE}{_ATX}|{_FENCE}|{_RULE})", re.MULTILINE)
_WITH_NUMBERS = re.compile(f"{_LINE}{_ATX}|{_FENCE}|{_RULE}|{_NUMBERED})", re.MULTILINE)
_FRONT_MATTER = re.compile(r"\ufeff?---[ \t]*\r?\n.*?^(?:---|\.\.\.)[ \t]*\r?$", re.DOTALL | re.MULTILINE)

_CLOSING = re.compile(r"(?:^|[ \t]+)#+[ \t]*$")
_OTHER_BLOCK = re.compile(r"#{1,6}\s|[>|]|[-*+]\s|\d{1,9}[.)]\s|```|~~~")
_DASHES = re.compile(r"\s*:?-+:?\s*")
_BAR = re.compile(r"(?<!\\)\|")


class Heading(NamedTuple):
    """A heading: from the start of its line to the end of its last line; `level` counts from 1, the highest."""

    start: int
    end: int
    level: int
    title: str


class Table(NamedTuple):
    """A table: its header row and row of dashes stand from `start` to `body`, its other rows from there to `end`."""

    start: int
    body: int
    end: int


@dataclass
class Marks:
    """Headings and tables of one text, in order."""

    headings: list[Heading] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


def read_marks(text: str, *, numbered: bool = False) -> Marks:
    """The headings and tables of `text`; with `numbered`, lines such as `2.1 Methods` between blank ones are headings.

    Time is linear in the length of the text.
    """
    scanner = _Scanner(text)
    for match in (_WITH_NUMBERS if numbered else _PLAIN).finditer(text):
        if match.start() >= scanner.free:
            scanner.read(match)
    return scanner.marks


@dataclass
class _Scanner:
    """Goes through the lines that could be marks; `free` is where the last mark ended."""

    text: str
    marks: Marks = field(default_factory=Marks)
    free: int = field(init=False)
    fence: str = ""

    def __post_init__(self) -> None:
        front = _FRONT_MATTER.match(self.text)
        self.free = front.end() if front else 0

    def read(self, match: re.Match[str]) -> None:
        if match.lastgroup == "info":
            self._fence(match["fence"], match["info"])
            self.free = match.end()
        elif not self.fence:
            {"title": self._atx, "rule": self._rule, "name": self._numbered}[match.lastgroup or ""](match)

    def _fence(self, fence: str, info: str) -> None:
        """Three backticks with more behind them on their line are code in a sentence."""
        if not self.fence:
            self.fence = "" if fence[0] == "`" and "`" in info else fence
        elif fence.startswith(self.fence) and not info.strip():
            self.fence = ""

    def _atx(self, match: re.Match[str]) -> None:
        level = len(match.group().lstrip(" ").split(maxsplit=1)[0])
        if len(match["title"]) <= _LONGEST:
            self._heading(match.start(), match.end(), level, _CLOSING.sub("", match["title"].rstrip()))

    def _numbered(self, match: re.Match[str]) -> None:
        name, level = match["name"].strip(), match["number"].count(".") + 1
        line_end = match.end()
        alone = self._blank_before(match.start()) and not self._line(line_end + 1).strip()
        if alone and name and not name[0].islower() and name[-1] not in ".,;:!?。，；：！？":
            self._heading(match.start(), line_end, level, f"{match['number']} {name}")

    def _rule(self, match: re.Match[str]) -> None:
        """A row of dashes below the header of a table, or a line below the text of a heading."""
        rule, start = match["rule"].strip(), self._line_before(match.start())
        above = "" if start is None else self.text[start : match.start()]
        if "|" in rule:
            if start is not None and _heads_table(above, rule):
                self._table(start, match.end())
        elif len(rule) >= 3 and set(rule) in ({"="}, {"-"}):
            if start is not None and self._is_title(start, above):
                self._heading(start, match.end(), 1 if rule[0] == "=" else 2, above)
            self.free = match.end()  # it parts what is above from what is below

    def _is_title(self, start: int, line: str) -> bool:
        bare = line.strip()
        usable = bare and len(line) <= _LONGEST and not line.startswith(("    ", "\t")) and not _OTHER_BLOCK.match(bare)
        return bool(usable) and self._blank_before(start)

    def _heading(self, start: int, end: int, level: int, title: str) -> None:
        title = " ".join(title.split())
        if title:
            self.marks.headings.append(Heading(start, end, level, title))
            self.free = end

    def _table(self, start: int, rule_end: int) -> None:
        body = end = self._next_line(rule_end)
        while end < len(self.text) and "|" in self.text[end : self._next_line(end)]:
            end = self._next_line(end)
        self.marks.tables.append(Table(start, body, end))
        self.free = end

    # Lines

    def _next_line(self, place: int) -> int:
        found = self.text.find("\n", place)
        return len(self.text) if found < 0 else found + 1

    def _line(self, start: int) -> str:
        return self.text[start : self._next_line(start)]

    def _line_before(self, start: int) -> int | None:
        """The start of the line above, where there is one on the page and it is no mark itself."""
        if start == 0 or self.text[start - 1] != "\n":
            return None
        line = self.text.rfind("\n", 0, start - 1) + 1
        line = self.text.rfind("\f", line, start - 1) + 1 or line
        return line if line >= self.free and line < start - 1 else None

    def _blank_before(self, start: int) -> bool:
        """Whether nothing, or a mark, is right above a line."""
        if start == 0 or self.text[start - 1] == "\f":
            return True
        above = self.text.rfind("\n", 0, start - 1) + 1
        return above < self.free or not self.text[above:start].strip()


def _heads_table(row: str, rule: str) -> bool:
    return _cells(row) == _cells(rule) and all(map(_DASHES.fullmatch, _BAR.split(_inner(rule))))


def _inner(row: str) -> str:
    row = row.strip().removeprefix("|")
    return row.removesuffix("|") if not row.endswith("\\|") else row


def _cells(row: str) -> int:
    """How many cells a row has; 0 where it has no bar."""
    return len(_BAR.split(_inner(row))) if "|" in row else 0
