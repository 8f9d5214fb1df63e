"""Data sets in HippoRAG's layout: questions with gold passages, passages, and triples that came with them.

    NAME.json           questions
    NAME_corpus.json    passages: a list of {title, text}, or a mapping from title to sentences (HotpotQA)
    openie_NAME.json    passages with `extracted_triples`; needs no corpus file beside it

A question's gold passages are the `paragraphs` with `is_supporting` (MuSiQue), or those that the titles of
`supporting_facts` name (2WikiMultiHopQA, HotpotQA). What is not as it should be is put up with, counted, and
said in `Dataset.notes`; a gold passage that the corpus does not have stays gold, so that no recall is too high.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from graphrag_milvus.errors import InputError
from graphrag_milvus.types import Document, content_hash, normalize_name

__all__ = ["MISSING", "Dataset", "Question", "read_dataset"]

MISSING = "missing: "
"""How the id of a gold passage begins that the corpus does not have; its title follows."""

_LAYOUT = "NAME.json with questions, and NAME_corpus.json or openie_NAME.json with passages"
_STRUCTURE = re.compile(r"(\dhop\d?)__")


@dataclass(frozen=True)
class Question:
    """A question and what answers it.

    Attributes:
        id: unique within the data set.
        gold: ids of the documents that it takes, or `MISSING` and a title.
        answers: the answer, and other spellings of it.
        type: the data set's own word for the kind of question; of MuSiQue the shape of the chain.
        hops: steps of its decomposition, or gold passages where the data set tells no steps.
    """

    id: str
    text: str
    gold: tuple[str, ...]
    answers: tuple[str, ...] = ()
    type: str = ""
    hops: int = 0


@dataclass(frozen=True)
class Dataset:
    """Passages as documents, whose ids are their places in the file, and questions; `notes` say what was odd."""

    name: str
    documents: list[Document]
    questions: list[Question]
    notes: list[str] = field(default_factory=list)

    @cached_property
    def digest(self) -> str:
        """A text that is another one for other passages or triples."""
        rows = ((d.id, d.title, d.text, _canonical(d.triplets)) for d in self.documents)
        return content_hash(*(part for row in rows for part in row))

    def sample(self, limit: int | None, seed: int = 0) -> list[Question]:
        """`limit` questions in the order of the file; a larger sample with the same seed holds a smaller one.

        Raises:
            InputError: `limit` is below 1.
        """
        if limit is None:
            return self.questions
        if limit < 1:
            raise InputError(f"limit is {limit}; it is the number of questions to ask, at least 1")
        order = sorted(self.questions, key=lambda q: content_hash("sample", str(seed), q.id))
        kept = {q.id for q in order[:limit]}
        return [q for q in self.questions if q.id in kept]


def read_dataset(path: str | Path) -> Dataset:
    """The data set of a folder, or of the questions file NAME.json where a folder has several.

    Raises:
        InputError: a file is missing or is not what the layout says, or no question has a gold passage.
    """
    found = _locate(Path(path))
    counts: Counter[str] = Counter()
    documents = _documents(found, counts)
    questions = _questions(found, _Index(documents), counts)
    return Dataset(found.name, documents, questions, [_NOTES[kind].format(n) for kind, n in counts.items() if n])


_NOTES = {
    "unreadable": "{:,} entries of the corpus are no passages (no title and no text) and were left out",
    "repeated": "{:,} passages stand in the corpus more than once and count once",
    "untripled": "{:,} passages have no triples",
    "stray": "{:,} passages with triples are not in the corpus file and were left out",
    "unasked": "{:,} entries of the questions file have no question and were left out",
    "renamed": "{:,} questions have the id of an earlier one and got one of their own",
    "goldless": "{:,} questions name no gold passage and were left out, since they cannot be scored",
    "missing": "{:,} gold passages are not in the corpus; they count as not found",
    "ambiguous": "{:,} gold titles belong to several passages; each of these counts as gold",
}


# --- files --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Files:
    name: str
    questions: Path
    corpus: Path | None
    triples: Path | None


def _locate(path: Path) -> _Files:
    if path.is_file():
        return _files(path)
    if not path.is_dir():
        raise InputError(f"{str(path)!r} does not exist; give the folder of a data set: {_LAYOUT}")
    found = [one for one in map(_files, sorted(path.glob("*.json"))) if one.corpus or one.triples]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(one.questions.name for one in found)
        raise InputError(f"{str(path)!r} has several data sets; give the questions file of one: {names}")
    raise InputError(f"{str(path)!r} has no data set in HippoRAG's layout ({_LAYOUT}){_remedy(path)}")


def _files(questions: Path) -> _Files:
    name = questions.stem
    if name.startswith("openie_") or name.endswith("_corpus"):
        return _Files(name, questions, None, None)
    corpus = questions.with_name(f"{name}_corpus.json")
    exact = questions.with_name(f"openie_{name}.json")
    results = [exact] if exact.is_file() else sorted(questions.parent.glob(f"openie_{name}_results*.json"))
    return _Files(name, questions, corpus if corpus.is_file() else None, results[0] if results else None)


def _remedy(folder: Path) -> str:
    inside = [sub.name for sub in sorted(folder.iterdir()) if sub.is_dir() and list(sub.glob("*.json"))]
    if inside:
        return f"; its folders {', '.join(inside[:5])} may have one each"
    files = [file.name for file in sorted(folder.glob("*.json"))]
    return f"; of JSON files there is {', '.join(files[:5]) or 'none'}"


def _load(path: Path) -> Any:
    """The file's JSON; a bare NaN is read, as Python does."""
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{str(path)!r} is not JSON in UTF-8 ({error}); get the file again") from error


def _text(value: Any) -> str:
    """A text or number as text that UTF-8 can hold; anything else, NaN too, is empty."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    return str(value).encode("utf-8", "replace").decode("utf-8").strip()


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# --- passages -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    title: str
    text: str
    triples: tuple[Any, ...] = ()

    @property
    def key(self) -> str:
        return _key(self.title, self.text)


def _key(title: str, text: str) -> str:
    """What tells passages apart: files differ in white space, and only there."""
    return f"{''.join(title.split())}\n{''.join(text.split())}"


def _documents(files: _Files, counts: Counter[str]) -> list[Document]:
    triples = _merged(_triple_rows(files.triples), counts) if files.triples else None
    if files.corpus is None and triples is None:
        raise InputError(f"{str(files.questions)!r} has no passages beside it; the layout is {_LAYOUT}")
    corpus = _merged(_corpus_rows(files.corpus), counts) if files.corpus else triples or {}
    if not corpus:
        raise InputError(f"{str(files.corpus or files.triples)!r} has no passage; get the file again")
    given = triples or {}
    counts["stray"] = len(given.keys() - corpus.keys())
    kept = {key: given[key].triples if key in given else () for key in corpus}
    counts["untripled"] = sum(not t for t in kept.values()) if given else 0
    return [
        Document(row.text or row.title, id=str(n), title=row.title, triplets=kept[row.key] or None)
        for n, row in enumerate(corpus.values())
    ]


def _merged(rows: Iterable[_Row | None], counts: Counter[str]) -> dict[str, _Row]:
    """Rows by key, the triples of equal passages together."""
    found: dict[str, _Row] = {}
    for row in rows:
        if row is None:
            counts["unreadable"] += 1
        elif row.key in found:
            counts["repeated"] += 1
            found[row.key] = _Row(row.title, row.text, (*found[row.key].triples, *row.triples))
        else:
            found[row.key] = row
    return found


def _corpus_rows(path: Path) -> Iterator[_Row | None]:
    data = _load(path)
    if isinstance(data, Mapping):
        yield from (_row(title, sentences) for title, sentences in data.items())
    elif isinstance(data, list):
        for entry in data:
            one = entry if isinstance(entry, Mapping) else {}
            yield _row(one.get("title"), one.get("text", one.get("paragraph_text")))
    else:
        raise InputError(f"{str(path)!r} holds neither a list of passages nor a mapping from title to sentences")


def _triple_rows(path: Path) -> Iterator[_Row | None]:
    data = _load(path)
    docs = data.get("docs") if isinstance(data, Mapping) else None
    if not isinstance(docs, list):
        raise InputError(f"{str(path)!r} has no list 'docs' of passages with triples; get the file again")
    for entry in docs:
        one = entry if isinstance(entry, Mapping) else {}
        title, text = one.get("title"), one.get("text")
        if text is None:
            title, _, text = _text(one.get("passage")).partition("\n")
        yield _row(title, text, _list(one.get("extracted_triples")))


def _row(title: Any, text: Any, triples: Sequence[Any] = ()) -> _Row | None:
    row = _Row(_text(title), _joined(text), tuple(triples))
    return row if row.title or row.text else None


def _joined(text: Any) -> str:
    """A text, or its sentences in a row; some files keep the space before a sentence and some do not."""
    if not isinstance(text, list):
        return _text(text)
    sentences = [s for s in text if isinstance(s, str)]
    spaced = any(s[:1].isspace() for s in sentences[1:])
    return _text(("" if spaced else " ").join(sentences))


# --- questions ----------------------------------------------------------------------------------------------------


class _Index:
    """Finds the documents that a gold passage means."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.by_key: dict[str, str] = {}
        self.by_title: dict[str, list[str]] = {}
        self.by_name: dict[str, list[str]] = {}
        for d in documents:
            self.by_key[_key(d.title, d.text)] = d.id
            self.by_title.setdefault(d.title, []).append(d.id)
            self.by_name.setdefault(normalize_name(d.title), []).append(d.id)

    def find(self, gold: _Gold) -> list[str]:
        """Their ids: one where text or title tells it, several where a title has several, none where none has it."""
        if gold.text is not None and (found := self.by_key.get(_key(gold.title, gold.text))) is not None:
            return [found]
        if gold.exact:
            return []
        return self.by_title.get(gold.title) or self.by_name.get(normalize_name(gold.title), [])


@dataclass(frozen=True)
class _Gold:
    """A gold passage as the question names it; with `exact` its title alone does not tell it."""

    title: str
    text: str | None = None
    exact: bool = False


def _questions(files: _Files, index: _Index, counts: Counter[str]) -> list[Question]:
    data = _load(files.questions)
    if not isinstance(data, list):
        raise InputError(f"{str(files.questions)!r} is not a list of questions; the layout is {_LAYOUT}")
    kept: dict[str, Question] = {}
    for n, entry in enumerate(data):
        question = _question(entry if isinstance(entry, Mapping) else {}, n, index, counts)
        if question is not None:
            id = _unique(question.id, kept)
            counts["renamed"] += id != question.id
            kept[id] = replace(question, id=id)
    if not kept:
        raise InputError(
            f"{str(files.questions)!r} has no question with a gold passage; each needs `question`, and `paragraphs` "
            f"with `is_supporting` or `supporting_facts`"
        )
    return list(kept.values())


def _unique(id: str, taken: Mapping[str, Any]) -> str:
    candidate, n = id, 1
    while candidate in taken:
        n += 1
        candidate = f"{id}#{n}"
    return candidate


def _question(row: Mapping[str, Any], place: int, index: _Index, counts: Counter[str]) -> Question | None:
    text = _text(row.get("question"))
    if not text:
        counts["unasked"] += 1
        return None
    gold = _gold(row, index, counts)
    if not gold:
        counts["goldless"] += 1
        return None
    id = _text(row.get("_id")) or _text(row.get("id")) or str(place)
    steps = len(_list(row.get("question_decomposition"))) or len(gold)
    return Question(id, text, gold, _answers(row), _type(row, id), steps)


def _type(row: Mapping[str, Any], id: str) -> str:
    structure = _STRUCTURE.match(id)
    return _text(row.get("type")) or (structure[1] if structure else "")


def _answers(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The answer and its aliases, each once."""
    values = [row.get(name) for name in ("answer", "answer_aliases", "answers", "possible_answers")]
    texts = [_text(one) for value in values for one in (value if isinstance(value, list) else [value])]
    return tuple(dict.fromkeys(text for text in texts if text))


def _gold(row: Mapping[str, Any], index: _Index, counts: Counter[str]) -> tuple[str, ...]:
    ids: dict[str, None] = {}
    for gold in _flagged(row) or _supporting(row):
        found = index.find(gold)
        counts["missing"] += not found
        counts["ambiguous"] += len(found) > 1
        ids |= dict.fromkeys(found or [f"{MISSING}{gold.title}"])
    return tuple(ids)


def _flagged(row: Mapping[str, Any]) -> list[_Gold]:
    """MuSiQue: paragraphs, of which several have the same title."""
    paragraphs = [p for p in _list(row.get("paragraphs") or row.get("contexts")) if isinstance(p, Mapping)]
    return [
        _Gold(_text(p.get("title")), _joined(p.get("paragraph_text", p.get("text"))), exact=True)
        for p in paragraphs
        if p.get("is_supporting") is True
    ]


def _supporting(row: Mapping[str, Any]) -> list[_Gold]:
    """2WikiMultiHopQA, HotpotQA: titles, each once, with the text that the question's own context has for it."""
    titles = dict.fromkeys(_text(title) for title, _ in _pairs(row.get("supporting_facts"), "title", "sent_id"))
    texts = {_text(title): _joined(text) for title, text in _pairs(row.get("context"), "title", "sentences")}
    return [_Gold(title, texts.get(title)) for title in titles if title]


def _pairs(value: Any, first: str, second: str) -> list[tuple[Any, Any]]:
    """Pairs as a list of pairs, or as a mapping of two columns."""
    if isinstance(value, Mapping):
        return list(zip(_list(value.get(first)), _list(value.get(second)), strict=False))
    return [(one[0], one[1]) for one in _list(value) if isinstance(one, list) and len(one) > 1]


def _canonical(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, sort_keys=True, default=str)
