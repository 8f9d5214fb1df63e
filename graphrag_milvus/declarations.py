"""Files that people write, as YAML, JSON or TOML, into mappings, lists and texts, with the line of every place.

Names and values stay as they are written: a type `NO`, a column `1990` and a synonym `on` are texts, not what YAML
makes of them. Nothing is constructed but mappings, lists and texts, and nothing stands for more than is written.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from pydantic import ValidationError

from graphrag_milvus.errors import SettingsError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Declaration", "Key", "did_you_mean", "read_declaration"]

Key: TypeAlias = "tuple[str | int, ...]"
"""The way to a place: keys of mappings and positions in lists."""

_MOST_BYTES = 1 << 20
_DEEPEST = 40
_TAG = "tag:yaml.org,2002:"
_TAGS = frozenset(_TAG + name for name in ("str", "int", "float", "bool", "null", "timestamp", "map", "seq", "merge"))
_WRAPPERS = ("Value error, ", "Assertion failed, ")


@dataclass(frozen=True)
class Declaration:
    """What somebody wrote: mappings, lists, texts, None, and in JSON and TOML also true and false.

    Attributes:
        source: the file, or what the values are where they came as such.
        lines: the line of each place, from 1; empty where it is not known.
    """

    value: Any
    source: str
    lines: Mapping[Key, int] = field(default_factory=dict)

    def place(self, key: Sequence[str | int]) -> str:
        """Where that is: `schema.yaml, line 12: types.Person`."""
        known = next((k for end in range(len(key), -1, -1) if (k := tuple(key[:end])) in self.lines), None)
        line = "" if known is None else f", line {self.lines[known]}"
        return f"{self.source}{line}: {'.'.join(map(str, key)) or 'the whole'}"

    def problems(self, error: ValidationError, names: Iterable[str] = ()) -> list[str]:
        """What is wrong, each with its place and, for an unknown key, the one of `names` that may be meant."""
        found = error.errors(include_url=False, include_context=False)
        return [f"{self.place(_key(e['loc']))}: {_message(e, names)}" for e in found]


def _key(loc: Sequence[str | int]) -> Key:
    return tuple(part for part in loc if part != "[key]")


def _message(error: Any, names: Iterable[str]) -> str:
    if error["type"] == "extra_forbidden":
        return f"there is no such key here{did_you_mean(str(error['loc'][-1]), names)}"
    if error["type"] == "missing":
        return "is missing"
    said = str(error["msg"])
    for wrapper in _WRAPPERS:
        if said.startswith(wrapper):
            return said.removeprefix(wrapper)
    return f"{said}, not {_shown(error['input'])}"


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}..."


def did_you_mean(given: str, names: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or the names that there are, or nothing where there are too many to say."""
    names = list(dict.fromkeys(names))
    folded = {name.casefold(): name for name in names}
    near = difflib.get_close_matches(given.casefold(), folded, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {folded[near[0]]!r}?"
    return f"; known are {', '.join(names)}" if 0 < len(names) <= 12 else ""


def read_declaration(source: str | Path | Mapping[Any, Any], what: str) -> Declaration:
    """What a file, or a mapping of the same shape, says.

    Args:
        source: a path that ends in `.yaml`, `.yml`, `.json` or `.toml`, of 1 MB at the most; or a mapping.
        what: how it is called in errors.

    Raises:
        SettingsError: it is not there, not of its format, or has something that is not read: an alias (`*name`), a
            key twice, a tag, more than 40 levels.
    """
    if isinstance(source, Mapping):
        return Declaration(_plain(source, what, ()), what)
    path = Path(source)
    text = _text(path, what)
    parse = {".json": _json, ".toml": _toml, ".yaml": _yaml, ".yml": _yaml}.get(path.suffix.lower())
    if parse is None:
        raise SettingsError(f"{what} {str(path)!r} ends in {path.suffix!r}; name a .yaml, .yml, .json or .toml file")
    return parse(text, str(path))


def _text(path: Path, what: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SettingsError(f"{what} {str(path)!r} cannot be read: {reason}; give the path of a file") from None
    if len(data) > _MOST_BYTES:
        raise SettingsError(f"{what} {str(path)!r} has more than 1 MB; it is to be written by hand")
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise SettingsError(f"{what} {str(path)!r} is not UTF-8 (byte {error.start}); save it as UTF-8") from None


# --- values -------------------------------------------------------------------------------------------------------


def _plain(value: Any, source: str, key: Key) -> Any:
    """Numbers and dates as texts, keys too."""
    if len(key) > _DEEPEST:
        raise SettingsError(f"{source}: {'.'.join(map(str, key[:3]))}... has more than {_DEEPEST} levels")
    if isinstance(value, Mapping):
        return _mapping(((str(k), v) for k, v in value.items()), source, key)
    if isinstance(value, (list, tuple)):
        return [_plain(item, source, (*key, n)) for n, item in enumerate(value)]
    return value if value is None or isinstance(value, (str, bool)) else str(value)


def _mapping(pairs: Iterable[tuple[str, Any]], source: str, key: Key) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise SettingsError(f"{source}: {'.'.join(map(str, (*key, name)))} stands there twice; keep one")
        found[name] = _plain(value, source, (*key, name))
    return found


# --- JSON and TOML ------------------------------------------------------------------------------------------------


def _json(text: str, source: str) -> Declaration:
    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        return _mapping(found, source, ())

    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_int=str, parse_float=str, parse_constant=str)
    except json.JSONDecodeError as error:
        raise SettingsError(f"{source}, line {error.lineno}: not JSON: {error.msg}, column {error.colno}") from None
    except RecursionError:
        raise SettingsError(f"{source}: lists in lists, too deep") from None
    return Declaration(_plain(value, source, ()), source)


def _toml(text: str, source: str) -> Declaration:
    try:
        return Declaration(_plain(tomllib.loads(text), source, ()), source)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{source}: not TOML: {error}") from None


# --- YAML ---------------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Takes no aliases: ten lines of them can stand for gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.MarkedYAMLError(
                problem=f"the alias *{event.anchor} is not read; write out what it stands for",
                problem_mark=event.start_mark,
            )
        return super().compose_node(parent, index)


def _yaml(text: str, source: str) -> Declaration:
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        hint = "; indent with spaces" if "\\t" in str(error.problem) else ""
        raise SettingsError(f"{source}{line}: not YAML that is read: {error.problem}{hint}") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"{source}: not YAML: {' '.join(str(error).split())[:200]}") from None
    except RecursionError:
        raise SettingsError(f"{source}: lists in lists, too deep") from None
    lines: dict[Key, int] = {}
    return Declaration(None if node is None else _built(node, source, (), lines), source, lines)


def _built(node: yaml.Node, source: str, key: Key, lines: dict[Key, int]) -> Any:
    line = node.start_mark.line + 1
    lines.setdefault(key, line)
    if len(key) > _DEEPEST:
        raise SettingsError(f"{source}, line {line}: more than {_DEEPEST} levels")
    if node.tag not in _TAGS:
        raise SettingsError(f"{source}, line {line}: the tag {node.tag.removeprefix(_TAG)!r} is not read; leave it out")
    if isinstance(node, yaml.MappingNode):
        return {name: _built(value, source, (*key, name), lines) for name, value in _pairs(node, source, key, lines)}
    if isinstance(node, yaml.SequenceNode):
        return [_built(item, source, (*key, n), lines) for n, item in enumerate(node.value)]
    return None if node.tag == f"{_TAG}null" else str(node.value)


def _pairs(node: yaml.MappingNode, source: str, key: Key, lines: dict[Key, int]) -> Iterator[tuple[str, yaml.Node]]:
    for name, value in node.value:
        line = name.start_mark.line + 1
        if not isinstance(name, yaml.ScalarNode):
            raise SettingsError(f"{source}, line {line}: a key is a list or a mapping; give a name")
        if (*key, name.value) in lines:
            first = lines[*key, name.value]
            raise SettingsError(f"{source}, line {line}: {name.value!r} stands in line {first} already; keep one")
        lines[*key, name.value] = line
        yield name.value, value
