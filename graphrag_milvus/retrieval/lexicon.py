"""Every name that the graph knows, matched longest first over the tokens of a text, in any script."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from graphrag_milvus.types import normalize_name

__all__ = ["Lexicon", "Mention", "tokenize"]

# Scripts that put no space between words: each character is a token, so that a name is found inside.
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    r"\U00020000-\U0003ffff"
)
_LETTER = rf"(?:(?![{_UNSPACED}])[^\W\d_])"


def _marks() -> str:
    r"""A pattern of one combining mark, which `\w` leaves out: without them राम would stand in रामायण."""
    marks = [c for c in range(0x300, 0x1E960) if unicodedata.category(chr(c)).startswith("M")]
    starts = [c for c, before in zip(marks, [0, *marks], strict=False) if before != c - 1]
    ends = [c for c, after in zip(marks, [*marks[1:], 0], strict=True) if after != c + 1]
    ranges = "".join(f"{chr(a)}-{chr(b)}" for a, b in zip(starts, ends, strict=True))
    return rf"(?:(?![{_UNSPACED}])[{ranges}])"


_MARK = _marks()
_TOKEN = re.compile(
    rf"[{_UNSPACED}]"
    rf"|(?<!(?![{_UNSPACED}])\w)[-\u2212]\d+(?:[.,]\d+)*"  # a number and its sign
    rf"|\d+(?:[.,]\d+)*(?:{_LETTER}(?:{_LETTER}|{_MARK})*)?"
    rf"|{_LETTER}(?:{_LETTER}|\d|{_MARK})*[+#]*"  # C++ and C# are not C
    r"|\S"
)


_ANY_LENGTH = 1 << 30
_PLAIN = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "ħ": "h", "ı": "i", "æ": "ae", "œ": "oe", "þ": "th"})


@dataclass(frozen=True, slots=True)
class Mention:
    """A known name that stands in a text; `text` is how it is spelled there.

    It is `doubtful` where it stands in lower case among capitals and was only seen with a capital.
    """

    entity_id: int
    text: str
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class _Token:
    folded: str
    start: int
    end: int


def tokenize(text: str) -> list[str]:
    """Folded tokens: words, numbers with their sign, single characters of scripts without spaces, symbols."""
    return [token.folded for token in _tokens(unicodedata.normalize("NFKC", text))]


@dataclass
class Lexicon:
    """Names with the entities that they stand for.

    A name that was only ever seen with a capital first letter does not match a word in lower case where
    `respect_case` is asked for: `May` is not `may`, `US` is not `us`.
    """

    _entities: dict[tuple[str, ...], list[int]] = field(default_factory=dict)
    _accented: dict[tuple[str, ...], list[int]] = field(default_factory=dict)
    _lower: set[int] = field(default_factory=set)
    _lengths: dict[str, list[int]] = field(default_factory=dict)
    _known: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, entity_id: int) -> bool:
        return entity_id in self._known

    def name(self, entity_id: int) -> str:
        """The normalised name of an entity, or its number where it is not known."""
        return self._known.get(entity_id, str(entity_id))

    def bearers(self, name: str) -> list[int]:
        """The entities that are called exactly so; where none is, those whose name differs by accents alone."""
        key = tuple(tokenize(normalize_name(name)))
        return self._named(key, accents=True) or self._named(key, accents=False)

    def add(self, name: str, entity_id: int) -> None:
        """Know `name`, in one of its spellings, as the entity."""
        if unicodedata.normalize("NFKC", name).strip()[:1].islower():
            self._lower.add(entity_id)
        if entity_id in self._known:
            return
        self._known[entity_id] = normalize_name(name)
        tokens = tuple(tokenize(self._known[entity_id]))
        if not tokens:
            return
        self._entities.setdefault(tokens, []).append(entity_id)  # "AT&T" and "AT & T" have the same tokens
        self._know_length(tokens)
        bare = tuple(map(_bare, tokens))
        if bare != tokens:
            self._accented.setdefault(bare, []).append(entity_id)
            self._know_length(bare)

    def _know_length(self, tokens: tuple[str, ...]) -> None:
        lengths = self._lengths.setdefault(tokens[0], [])
        if len(tokens) not in lengths:
            lengths.append(len(tokens))
            lengths.sort(reverse=True)

    def match(self, text: str, *, respect_case: bool = False) -> list[Mention]:
        """The names in a text from left to right; where several begin at one place, the longest."""
        normal = unicodedata.normalize("NFKC", text)
        return list(self._walk(normal, list(_tokens(normal)), _ANY_LENGTH if respect_case else 0, accents=True))

    def link(self, question: str) -> list[Mention]:
        """The names in a question, which people type in their own way: accents may be missing or too many.

        Where the question has capitals after its first word, a name of one word that was only seen with a capital
        does not match a word in lower case: the state that borders another is no `State`. A longer one does, but is
        doubtful: `leonhard euler` is meant, a `place of birth` is not. Where nothing is found so, case counts no more.
        """
        normal = unicodedata.normalize("NFKC", question)
        tokens = list(_tokens(normal))
        cased = any(normal[token.start].isupper() for token in tokens[1:])
        found = list(self._walk(normal, tokens, 1 if cased else 0, accents=False))
        if not found:
            return list(self._walk(normal, tokens, 0, accents=False))
        return [replace(mention, doubtful=self._doubted(mention)) for mention in found] if cased else found

    def _doubted(self, mention: Mention) -> bool:
        return mention.text[:1].islower() and mention.entity_id not in self._lower

    def _walk(self, text: str, tokens: list[_Token], cased: int, *, accents: bool) -> Iterator[Mention]:
        """Names from left to right; the case of those of at most `cased` tokens counts."""
        at = 0
        while at < len(tokens):
            length = 0
            for candidate in self._candidate_lengths(tokens[at].folded, accents):
                if at + candidate > len(tokens):
                    continue
                spelled = text[tokens[at].start : tokens[at + candidate - 1].end]
                found = self._named(tuple(token.folded for token in tokens[at : at + candidate]), accents)
                if candidate <= cased and spelled[:1].islower():
                    found = [entity_id for entity_id in found if entity_id in self._lower]
                if found:
                    yield from (Mention(entity_id, spelled) for entity_id in found)
                    length = candidate
                    break
            at += length or 1

    def _candidate_lengths(self, first: str, accents: bool) -> Sequence[int]:
        lengths = self._lengths.get(first, ())
        bare = first if accents else _bare(first)
        if bare == first:
            return lengths
        return sorted({*lengths, *self._lengths.get(bare, ())}, reverse=True)

    def _named(self, key: tuple[str, ...], accents: bool) -> list[int]:
        """The entities of a name; where accents do not count, those that have it as it is come before all others."""
        exact = sorted(self._entities.get(key, ()))
        if exact or accents:
            return exact
        bare = tuple(map(_bare, key))
        return sorted({*self._entities.get(bare, ()), *self._accented.get(bare, ())})


def _bare(token: str) -> str:
    """A token without the accents of Latin, Greek and Cyrillic letters; in other scripts marks are letters."""
    if token.isascii():
        return token
    parts = unicodedata.normalize("NFD", token)
    return unicodedata.normalize("NFC", "".join(c for c in parts if not "\u0300" <= c <= "\u036f")).translate(_PLAIN)


def _tokens(text: str) -> Iterator[_Token]:
    """Tokens of an NFKC text, found in its folded form: folding makes letters of marks, and two letters of one."""
    folded = text.casefold()
    places = range(len(text)) if len(folded) == len(text) else [n for n, c in enumerate(text) for _ in c.casefold()]
    for match in _TOKEN.finditer(folded):
        token = unicodedata.normalize("NFKC", match.group())
        yield _Token(token, places[match.start()], places[match.end() - 1] + 1)
