"""Blocks of Markdown, the form in which documents with an outline and tables become one text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["first_heading", "heading", "item", "joined", "paragraph", "table"]

_HEADING = re.compile(r" {0,3}#[ \t]+(\S.*?)(?:[ \t]+#+)?[ \t]*")
_FENCE = re.compile(r" {0,3}(```|~~~)")
_LIKE_HEADING = re.compile(r"^(?= {0,3}#{1,6}(?:\s|$))", re.MULTILINE)
_ITEM = re.compile(r" *- ")


def heading(level: int, text: str) -> str:
    """A heading of level 1 to 6; deeper ones count as 6."""
    return f"{'#' * min(max(level, 1), 6)} {' '.join(text.split())}"


def paragraph(text: str) -> str:
    """A text that is no heading, even where a line of it looks like one."""
    return _LIKE_HEADING.sub(r"\\", text)


def item(depth: int, text: str) -> str:
    """An item of a list, `depth` lists deep, from 0."""
    return f"{'  ' * min(depth, 8)}- {' '.join(text.split())}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """A table whose first row is its head; short rows are filled up, rows and columns without a text left out."""
    width = max(map(len, rows), default=0)
    cells = [[_cell(text) for text in row] + [""] * (width - len(row)) for row in rows]
    cells = [row for row in cells if any(row)]
    used = [column for column in range(width) if any(row[column] for row in cells)]
    if not used:
        return ""
    lines = ["| " + " | ".join(row[column] for column in used) + " |" for row in cells]
    return "\n".join([lines[0], "|" + " --- |" * len(used), *lines[1:]])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def joined(blocks: Iterable[str]) -> str:
    """One text, with an empty line between blocks but for items of one list."""
    pieces: list[str] = []
    for block in filter(None, blocks):
        if pieces:
            pieces.append("\n" if _ITEM.match(pieces[-1]) and _ITEM.match(block) else "\n\n")
        pieces.append(block)
    return "".join(pieces)


def first_heading(text: str) -> str:
    """The first heading of the first level, outside of code; "" where there is none."""
    fence = ""  # the mark of the code block that is open: a comment of a shell looks like a heading
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if mark and (not fence or fence == mark.group(1)):
            fence = "" if fence else mark.group(1)
        elif not fence and (found := _HEADING.fullmatch(line)):
            return found.group(1)
    return ""
