"""Names of files, folders and patterns into paths, each with a failure where it leads nowhere."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ReadFailure", "find", "identity", "known", "normal_path", "source_of", "suffix_of", "system_says"]

_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class ReadFailure:
    """A file, or a part of one, that gave no document.

    Attributes:
        source: the path; `path:LINE` in JSON Lines and CSV (from 1), `path[INDEX]` in a JSON list and Parquet
            (from 0), `path, page N` in PDF.
        reason: what is wrong with it and, where that helps, what to do.
    """

    source: str
    reason: str


def find(name: str, suffixes: Collection[str]) -> Iterator[Path | ReadFailure]:
    """The files that one of the caller's names stands for: itself, those in a folder, or those that fit a pattern.

    Of a folder or a pattern only files that end in one of `suffixes`; a `ReadFailure` where there are none.
    """
    path = Path(name)
    if not name:
        yield ReadFailure("", "is an empty path; the current directory is called .")
    elif _is_folder(path):
        nothing = ReadFailure(source_of(path), f"has no file of a known kind in it; {known(suffixes)}")
        yield from _or_failure(_walk([path], suffixes), nothing)
    elif _MAGIC.search(name) and not os.path.lexists(path):
        nothing = ReadFailure(name, f"matches no file of a known kind; {known(suffixes)}")
        yield from _or_failure(_matches(path, suffixes), nothing)
    else:
        yield path


def _or_failure(found: Iterator[Path | ReadFailure], failure: ReadFailure) -> Iterator[Path | ReadFailure]:
    nothing = True
    for item in found:
        nothing = False
        yield item
    if nothing:
        yield failure


def _matches(pattern: Path, suffixes: Collection[str]) -> Iterator[Path | ReadFailure]:
    """Not `glob.glob`: in its `**` two folders that link to each other keep it busy for good."""
    first = next(place for place, part in enumerate(pattern.parts) if _MAGIC.search(part))
    base, rest = Path(*pattern.parts[:first]), pattern.parts[first:]
    with_hidden = _is_hidden(Path(*rest))
    try:
        found = sorted(base.glob("/".join(rest)))
    except ValueError as error:
        yield ReadFailure(str(pattern), f"is no pattern ({error})")
    else:
        shown = [path for path in found if with_hidden or not _is_hidden(path.relative_to(base))]
        yield from _walk(shown, suffixes)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") and part != ".." for part in path.parts)


def _walk(start: list[Path], suffixes: Collection[str]) -> Iterator[Path | ReadFailure]:
    """The files of a known kind in and below `start`, sorted; a stack and not recursion, for folders of any depth."""
    waiting = start[::-1]
    seen: set[object] = set()
    while waiting:
        path = waiting.pop()
        if not _is_folder(path):
            if suffix_of(path, suffixes):
                yield path
        elif (key := identity(path)) not in seen:
            seen.add(key)
            try:
                waiting += sorted((child for child in path.iterdir() if not _is_hidden(Path(child.name))), reverse=True)
            except OSError as error:
                yield ReadFailure(source_of(path), system_says(error))


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        return False


# --- about one path -----------------------------------------------------------------------------------------------


def source_of(path: Path) -> str:
    """How a file is called in ids: by its path below the current directory, or else in full, with `/`.

    Bytes of a name that are not UTF-8 are written as escapes.
    """
    normal = Path(normal_path(path))
    here = Path.cwd()
    name = (normal.relative_to(here) if normal.is_relative_to(here) else normal).as_posix()
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def normal_path(path: Path) -> str:
    """The absolute path without `.` and `..`: two spellings of one place are equal, links are not followed."""
    return os.path.normpath(path.absolute())


def identity(path: Path) -> object:
    """Equal for all names that lead to one file or folder, through links or not."""
    try:
        info = path.stat()
    except (OSError, ValueError):
        return normal_path(path)
    return (info.st_dev, info.st_ino) if info.st_ino else normal_path(path)  # some systems number no files


def suffix_of(path: Path, suffixes: Collection[str]) -> str:
    """The longest of `suffixes` in which the file's name ends, in capitals or not; "" where none does."""
    name = path.name.lower()
    return max((suffix for suffix in suffixes if name.endswith(suffix)), key=len, default="")


def known(suffixes: Collection[str]) -> str:
    """The kinds of file that there are, for a message."""
    packed = {f"{suffix}.gz" for suffix in suffixes}
    names = (suffix for suffix in sorted(suffixes) if suffix not in packed)
    return "known are " + ", ".join(f"{name}[.gz]" if f"{name}.gz" in suffixes else name for name in names)


def system_says(error: OSError) -> str:
    """What is wrong, without the number and the path that `str(error)` has too."""
    return error.strerror or str(error)
