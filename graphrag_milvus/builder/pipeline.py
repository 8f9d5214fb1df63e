"""Indexing: documents in, rows in Milvus out, a window of documents at a time.

Whatever is interrupted, and wherever, is completed by running the same again: finished documents are
recognised by their hash, finished passages of the others by their recipe, and ids derive from content.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from graphrag_milvus.builder.extractors import Extractor
from graphrag_milvus.builder.readers import ReadFailure
from graphrag_milvus.builder.splitters import split
from graphrag_milvus.builder.vectorizer import Vectorizer
from graphrag_milvus.builder.writer import StoredPassage, Writer, document_key
from graphrag_milvus.errors import EmbeddingError, IdCollisionError, InputError
from graphrag_milvus.store import MAX_BYTES, MAX_ID_BYTES, MilvusStore
from graphrag_milvus.types import (
    Document,
    Entity,
    ExtractedRelation,
    Extraction,
    IndexReport,
    Passage,
    Relation,
    content_hash,
    content_id,
    entity_id,
    normalize_name,
)

__all__ = ["Pipeline"]

_VERSION = "1"


@dataclass
class _Work:
    """One document on its way."""

    document: Document
    hash: str
    updated: bool
    passages: list[Passage]
    failures: list[str] = field(default_factory=list)


@dataclass
class _Plan:
    """What a window has to do: which passages are new, which are there, which rows are to go."""

    fresh: list[Passage] = field(default_factory=list)
    kept: dict[int, StoredPassage] = field(default_factory=dict)
    old_passages: dict[int, StoredPassage] = field(default_factory=dict)
    old_relations: dict[int, int] = field(default_factory=dict)


@dataclass
class Pipeline:
    """Indexes documents into one workspace.

    Args:
        store: an open store.
        extractor: finds the relations of passages.
        vectorizer: makes the vectors.
        passage_size: characters in one passage at the most.
        window: documents in work at once; what is lost by an interruption is at most that.
        on_progress: called with the number of documents done, as they are done.
    """

    store: MilvusStore
    extractor: Extractor
    vectorizer: Vectorizer
    passage_size: int = 1_200
    window: int = 64
    on_progress: Callable[[int], None] = lambda _: None

    def run(self, documents: Iterable[Document | ReadFailure]) -> IndexReport:
        """Index everything; a document that cannot be is reported and the others are done.

        Raises:
            StoreError: Milvus is gone; run the same again to go on.
        """
        started = time.monotonic()
        report = IndexReport()
        for window in self._windows(documents, report):
            self._index(window, report)
            self.on_progress(len(window))
        if report.passages:
            self.store.flush()
        report.seconds = round(time.monotonic() - started, 3)
        return report

    # One window

    def _windows(self, documents: Iterable[Document | ReadFailure], report: IndexReport) -> Iterator[list[Document]]:
        """Groups of documents with distinct ids; what could not be read, or kept, goes into the report."""
        window: dict[str, Document] = {}
        for item in documents:
            report.documents += 1
            document = _refuse(item, report) if isinstance(item, ReadFailure) else _accept(item, report)
            if document is None:
                self.on_progress(1)
                continue
            if document.id in window or len(window) >= self.window:
                yield list(window.values())
                window = {}
            window[document.id] = document
        if window:
            yield list(window.values())

    def _index(self, documents: Sequence[Document], report: IndexReport) -> None:
        writer = Writer(self.store)
        work = self._changed(writer, documents, report)
        if not work:
            return
        try:
            self._write(writer, work, report)
        except (EmbeddingError, InputError, IdCollisionError) as error:
            if len(work) > 1:  # find out whose it is, and do the others
                for one in work:
                    self._index([one.document], report)
                return
            report.failed.append(_failure(work[0].document, str(error)))
        self.store.touch()

    def _changed(self, writer: Writer, documents: Sequence[Document], report: IndexReport) -> list[_Work]:
        """The documents that are not there as they are, split."""
        known = writer.hashes([d.id for d in documents])
        work = []
        for document in documents:
            digest = self._hash(document)
            if known.get(document.id) == digest:
                report.unchanged += 1
                continue
            work.append(_Work(document, digest, document.id in known, split(document, self.passage_size)))
        return work

    def _hash(self, document: Document) -> str:
        return content_hash(
            _VERSION,
            str(self.passage_size),
            self.extractor.recipe,
            document.title,
            document.source,
            document.text,
            _json(document.metadata),
            _json(document.triplets),
        )

    def _recipe(self, passage: Passage) -> str:
        return content_hash(_VERSION, self.extractor.recipe, _json(passage.triplets))

    def _write(self, writer: Writer, work: Sequence[_Work], report: IndexReport) -> None:
        writer.reopen([w.document.id for w in work if w.updated])
        plan = self._plan(writer, work)
        extractions = self.extractor.extract(plan.fresh)
        relations = _relations(plan.fresh, extractions)
        self._note_failures(work, plan.fresh, extractions, report)
        entities = self._write_rows(writer, plan, extractions, relations)
        self._move(writer, work, plan)
        self._remove_stale(work, plan, relations)
        counts = _expected(work, plan, relations)
        complete = self._confirm(writer, work, counts, report)
        hashes = {w.document.id: "" if w.failures else w.hash for w in work}
        writer.documents([w.document for w in complete], hashes, counts)
        self._account(complete, report)
        report.passages += len(plan.fresh)
        report.relations += len(relations)
        report.entities += entities

    def _plan(self, writer: Writer, work: Sequence[_Work]) -> _Plan:
        keys = [document_key(w.document.id) for w in work]
        plan = _Plan(old_passages=writer.passages_of(keys), old_relations=writer.relations_of(keys))
        have = Counter(plan.old_relations.values())
        for passage in (p for w in work for p in w.passages):
            old = plan.old_passages.get(passage.id)
            # A row whose relations are not all there was written by an engine that lost some.
            if old and old.recipe == self._recipe(passage) and have[passage.id] == old.relations:
                plan.kept[passage.id] = old
            else:
                plan.fresh.append(passage)
        return plan

    def _write_rows(
        self, writer: Writer, plan: _Plan, extractions: Sequence[Extraction], relations: Sequence[Relation]
    ) -> int:
        """Write entities, then relations, then passages; how many entities were new."""
        passages = {p.id: p for p in plan.fresh}
        found = _entities(relations)
        stored = self.store.refuse_collisions("entities", {e.id: e.name for e in found})
        entities = [e for e in found if e.id not in stored]
        titles = [passages[r.passage_id].title for r in relations]
        writer.entities(entities, self.vectorizer.entities(entities))
        writer.relations(relations, self.vectorizer.relations(relations, titles), passages)
        recipes = ["" if e.failure else self._recipe(p) for p, e in zip(plan.fresh, extractions, strict=True)]
        counts = Counter(r.passage_id for r in relations)
        writer.passages(plan.fresh, self.vectorizer.passages(plan.fresh), recipes, counts)
        return len(entities)

    def _move(self, writer: Writer, work: Sequence[_Work], plan: _Plan) -> None:
        """Keep position and metadata of passages that stayed as they would be in a new index."""
        moved, described = [], []
        for passage in (p for w in work for p in w.passages if p.id in plan.kept):
            old = plan.kept[passage.id]
            if _json(old.metadata) != _json(passage.metadata):
                described.append(passage.id)
            if described[-1:] == [passage.id] or old.position != passage.position:
                moved.append(passage)
        if moved:
            writer.move(moved, with_relations=described)

    def _remove_stale(self, work: Sequence[_Work], plan: _Plan, relations: Sequence[Relation]) -> None:
        present = {p.id for w in work for p in w.passages}
        fresh = {r.id for r in relations}
        stale = [r for r, p in plan.old_relations.items() if p not in plan.kept and r not in fresh]
        self.store.delete("relations", ids=stale)
        self.store.delete("passages", ids=[p for p in plan.old_passages if p not in present])

    def _confirm(
        self, writer: Writer, work: Sequence[_Work], counts: dict[str, tuple[int, int]], report: IndexReport
    ) -> list[_Work]:
        """The documents whose rows are all there when they are counted, whatever the engine acknowledged."""
        keys = {document_key(w.document.id): w for w in work}
        filter = f"doc in {list(keys)}"
        sums = self.store.count("passages", filter), self.store.count("relations", filter)
        if sums == (sum(c[0] for c in counts.values()), sum(c[1] for c in counts.values())):
            return list(work)
        passages, relations = (writer.counts(name, list(keys)) for name in ("passages", "relations"))
        complete = []
        for key, one in keys.items():
            kept, wanted = (passages[key], relations[key]), counts[one.document.id]
            if kept == wanted:
                complete.append(one)
            else:
                reason = f"Milvus keeps {kept} passages and relations of {wanted} that it took; index again"
                report.failed.append(_failure(one.document, reason))
        return complete

    def _note_failures(
        self, work: Sequence[_Work], fresh: Sequence[Passage], extractions: Sequence[Extraction], report: IndexReport
    ) -> None:
        owners = {w.document.id: w for w in work}
        for passage, extraction in zip(fresh, extractions, strict=True):
            place = f"{passage.doc_id}, passage {passage.position}"
            report.warnings.extend(f"{place}: {warning}" for warning in extraction.warnings)
            if extraction.failure:
                owners[passage.doc_id].failures.append(f"passage {passage.position}: {extraction.failure}")

    def _account(self, work: Sequence[_Work], report: IndexReport) -> None:
        for one in work:
            if one.failures:
                report.failed.append(_failure(one.document, "; ".join(one.failures[:3])))
            elif one.updated:
                report.updated += 1
            else:
                report.added += 1


def _accept(document: Document, report: IndexReport) -> Document | None:
    """The document with its id and clean texts, or None where it cannot be kept."""
    problem = _problem(document)
    if problem:
        report.failed.append(_failure(document, problem))
        return None
    text, title = _clean(document.text), _clean(document.title)
    name = _clean(document.id) or f"text-{content_hash('text', title, text)[:16]}"
    return replace(document, id=name, title=title, text=text, source=_clean(document.source))


def _refuse(failure: ReadFailure, report: IndexReport) -> None:
    report.failed.append({"source": failure.source, "reason": failure.reason})


def _problem(document: Document) -> str:
    if not isinstance(document.text, str) or not document.text.strip():
        return "the text is empty; a document needs some"
    for name, limit in (("id", MAX_ID_BYTES), ("title", MAX_BYTES), ("source", MAX_BYTES)):
        value = getattr(document, name)
        if not isinstance(value, str):
            return f"{name} is {value!r}; it must be a text"
        if len(_clean(value).encode()) > limit:
            return f"{name} has {len(value.encode(errors='replace')):,} bytes; the most is {limit:,}"
    try:
        used = len(json.dumps(dict(document.metadata), ensure_ascii=False, allow_nan=False).encode(errors="replace"))
    except (TypeError, ValueError) as error:
        return f"metadata is not JSON ({error})"
    return f"metadata has {used:,} bytes as JSON; the most is {MAX_BYTES:,}" if used > MAX_BYTES else ""


def _clean(text: str) -> str:
    """Without lone surrogates, which no UTF-8 can hold, and without NUL, which C++ engines end a text at."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")


def _relations(passages: Sequence[Passage], extractions: Sequence[Extraction]) -> list[Relation]:
    return [
        relation
        for passage, extraction in zip(passages, extractions, strict=True)
        for relation in _relations_of(passage, extraction.relations)
    ]


def _relations_of(passage: Passage, extracted: Sequence[ExtractedRelation]) -> Iterator[Relation]:
    """With ids: equal relations of one passage are told apart by their number."""
    seen: Counter[tuple[str, str, tuple[str, ...]]] = Counter()
    for one in extracted:
        names = tuple(name for name in (_clean(n) for n in one.names) if normalize_name(name))
        key = (_clean(one.text), _clean(one.predicate), names)
        relation_id = content_id("relation", str(passage.id), str(seen[key]), key[0], key[1], *names)
        seen[key] += 1
        ids = tuple(entity_id(name) for name in names)
        yield Relation(relation_id, key[0], key[1], ids, names, passage.id, passage.doc_id)


def _entities(relations: Sequence[Relation]) -> list[Entity]:
    found: dict[int, Entity] = {}
    for relation in relations:
        for key, name in zip(relation.entity_ids, relation.names, strict=True):
            found.setdefault(key, Entity(key, normalize_name(name)))
    return list(found.values())


def _expected(work: Sequence[_Work], plan: _Plan, relations: Sequence[Relation]) -> dict[str, tuple[int, int]]:
    """Passages and relations that each document must have."""
    fresh = Counter(r.doc_id for r in relations)
    return {
        w.document.id: (
            len(w.passages),
            fresh[w.document.id] + sum(plan.kept[p.id].relations for p in w.passages if p.id in plan.kept),
        )
        for w in work
    }


def _failure(document: Document, reason: str) -> dict[str, str]:
    return {"source": str(document.id or document.source or str(document.text)[:60]), "reason": reason}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=_as_json)


def _as_json(value: object) -> object:
    return dict(value) if hasattr(value, "keys") else str(value)  # type: ignore[call-overload]
