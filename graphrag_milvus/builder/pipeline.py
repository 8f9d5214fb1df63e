"""Indexing: documents in, rows in Milvus out, a window of documents at a time.

Whatever is interrupted, and wherever, is completed by running the same again: finished documents are
recognised by their hash, finished passages of the others by their recipe, and ids derive from content.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from graphrag_milvus.builder.extractors import Extractor
from graphrag_milvus.builder.readers import ReadFailure
from graphrag_milvus.builder.splitters import OutlineSplitter, Splitter, split
from graphrag_milvus.builder.vectorizer import Vectorizer, Vectors
from graphrag_milvus.builder.writer import StoredDocument, StoredPassage, Writer, document_key
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

__all__ = ["Pipeline", "stored_id"]

_VERSION = "1"
_WINDOW_CHARACTERS = 4_000_000  # of texts in work at once: a window of long documents has fewer of them
_OUTAGES = 3  # windows in a row for which there were no vectors, after which there is no point in going on
_WARNINGS = 1_000  # that are kept; the others are counted


@dataclass
class _Work:
    """One document on its way; `found` keeps what was extracted by passage, so that nothing is asked for twice."""

    document: Document
    hash: str
    updated: bool
    passages: list[Passage]
    found: dict[int, Extraction] = field(default_factory=dict)

    @property
    def failures(self) -> list[str]:
        """Why which passages are not finished."""
        extractions = [(p.position, self.found[p.id]) for p in self.passages if p.id in self.found]
        return [f"passage {position}: {one.failure}" for position, one in extractions if one.failure]


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
        passage_size: characters in one passage at the most, where no splitter is given.
        window: documents in work at once; what is lost by an interruption is at most that.
        on_progress: called with the number of documents done, as they are done.
        splitter: makes passages of documents; None does it by the outline, as `auto` does.
    """

    store: MilvusStore
    extractor: Extractor
    vectorizer: Vectorizer
    passage_size: int = 1_200
    window: int = 256
    on_progress: Callable[[int], None] = lambda _: None
    splitter: Splitter | None = None
    _began: int = field(default=0, init=False, repr=False)  # milliseconds since 1970
    _outages: int = field(default=0, init=False, repr=False)
    _unsaid: int = field(default=0, init=False, repr=False)  # warnings that are not kept
    _redone: Counter[str] = field(default_factory=Counter, init=False, repr=False)

    def run(self, documents: Iterable[Document | ReadFailure]) -> IndexReport:
        """Index everything; a document that cannot be is reported and the others are done.

        Documents are taken as they are needed and not kept; what grows with their number is the report, by one
        entry for each that failed.

        Raises:
            StoreError: Milvus is gone; run the same again to go on.
            EmbeddingError: the embedder is gone; likewise.
        """
        started, self._began = time.monotonic(), int(time.time() * 1000)
        self._redone.clear()
        self._outages = self._unsaid = 0
        report = IndexReport()
        for window in self._windows(documents, report):
            self._index(window, report)
            self.on_progress(len(window))
        if report.passages:
            self.store.flush()
        if self._unsaid:
            report.warnings.append(f"and {self._unsaid:,} more warnings about single documents and passages")
        report.warnings.extend(f"documents {what}: {count:,}" for what, count in self._redone.items())
        report.seconds = round(time.monotonic() - started, 3)
        return report

    def ahead(
        self, documents: Iterable[Document | ReadFailure], report: IndexReport, *, empty: bool = False
    ) -> Iterator[list[Passage]]:
        """The passages that `run` would do, window by window; nothing is written, and no model is asked.

        Args:
            report: gets the counts of documents, and what fails already now.
            empty: do not look into Milvus, since nothing is there.
        """
        self._began = int(time.time() * 1000)
        for window in self._windows(documents, report):
            writer = None if empty else Writer(self.store)
            work = self._changed(writer, window, report)
            report.updated += sum(w.updated for w in work)
            report.added += sum(not w.updated for w in work)
            yield self._plan(writer, work).fresh
            self.on_progress(len(window))

    # One window

    def _windows(self, documents: Iterable[Document | ReadFailure], report: IndexReport) -> Iterator[list[Document]]:
        """Groups of documents with distinct ids; what could not be read, or kept, goes into the report."""
        window: dict[str, Document] = {}
        size = 0
        for item in documents:
            report.documents += 1
            document = _accept(item, report)
            if document is None:
                self.on_progress(1)
                continue
            if document.id in window or len(window) >= self.window or size > _WINDOW_CHARACTERS:
                yield list(window.values())
                window, size = {}, 0
            window[document.id] = document
            size += len(document.text)
        if window:
            yield list(window.values())

    def _index(self, documents: Sequence[Document], report: IndexReport) -> None:
        writer = Writer(self.store)
        work = self._changed(writer, documents, report)
        if work:
            self._finish(writer, work, report)

    def _finish(self, writer: Writer, work: Sequence[_Work], report: IndexReport) -> None:
        """Write documents; where something of them cannot be, in halves of halves, so that the rest is done."""
        try:
            self._write(writer, work, report)
            self._outages = 0
        except (EmbeddingError, InputError, IdCollisionError) as error:
            gone = isinstance(error, EmbeddingError) and error.unavailable
            if gone or len(work) == 1:
                self.store.touch()
                report.failed.extend(_failure(one.document, str(error)) for one in work)
                self._bear(error, gone)
                return
            for part in (work[: len(work) // 2], work[len(work) // 2 :]):
                self._finish(writer, part, report)

    def _bear(self, error: Exception, gone: bool) -> None:
        """Go on after a failure, but not for ever without an embedder: each window takes all retries to fail."""
        self._outages = self._outages + 1 if gone else 0
        if self._outages >= _OUTAGES:
            raise error

    def _warn(self, report: IndexReport, warning: str) -> None:
        if len(report.warnings) < _WARNINGS:
            report.warnings.append(warning)
        else:
            self._unsaid += 1

    def _changed(self, writer: Writer | None, documents: Sequence[Document], report: IndexReport) -> list[_Work]:
        """The documents that are not there as they are, split."""
        stored = writer.stored([d.id for d in documents]) if writer is not None else {}
        work = []
        for document in documents:
            digest, old = self._hash(document), stored.get(document.id, StoredDocument())
            if old.hash == digest:
                report.unchanged += 1
                continue
            if old.indexed_at > self._began:
                self._warn(report, f"{document.id}: came before with other content; the last one counts")
            try:
                passages = self._split(document)
            except (InputError, EmbeddingError) as error:
                report.failed.append(_failure(document, str(error)))
                continue
            self._redone.update(_anew(old.hash, digest, self._splitter.recipe, self.extractor.recipe))
            work.append(_Work(document, digest, old.indexed_at > 0, passages))
        return work

    @property
    def _splitter(self) -> Splitter:
        return self.splitter or OutlineSplitter(self.passage_size)

    def _split(self, document: Document) -> list[Passage]:
        """The passages; what the splitter says of one has to be storable as the document's metadata has."""
        passages = split(document, self.passage_size, self._splitter)
        if not passages:
            raise InputError(f"splitter {self._splitter.recipe!r} gave no passage of {document.text.strip()[:60]!r}")
        return [p if p.metadata is document.metadata else replace(p, metadata=_metadata(p.metadata)) for p in passages]

    def _hash(self, document: Document) -> str:
        """Of the document, of the splitter and of the extractor, so that what changed can be told."""
        parts = self._content(document), content_hash(self._splitter.recipe), content_hash(self.extractor.recipe)
        return ".".join((parts[0], parts[1][:15], parts[2][:15]))

    def _content(self, document: Document) -> str:
        return content_hash(
            _VERSION,
            document.title,
            document.source,
            document.text,
            _json(document.metadata),
            _fingerprint(document.triplets),
        )

    def _recipe(self, passage: Passage) -> str:
        """Changes with all that relations and vector are made of, beside title and text, which the id has."""
        return content_hash(_VERSION, self.extractor.recipe, _fingerprint(passage.triplets), *passage.headings)

    def _write(self, writer: Writer, work: Sequence[_Work], report: IndexReport) -> None:
        writer.open([w.document for w in work], self.vectorizer.dimension)
        plan = self._plan(writer, work)
        vectors = self.vectorizer.passages(plan.fresh)  # before a model is paid for what could not be embedded
        self._extract(work, plan, report)
        relations = _relations(plan.fresh, work)
        entities = self._write_entities(writer, work, relations)
        self._write_passages(writer, work, plan, relations, vectors)
        self._move(writer, work, plan)
        self._remove_stale(work, plan)
        self.store.touch()  # before a document counts as finished, since nothing does it for a finished one
        counts = _expected(work, plan, relations)
        self._close(writer, self._confirm(writer, work, counts, report), counts, report)
        report.passages += len(plan.fresh)
        report.relations += len(relations)
        report.entities += entities

    def _plan(self, writer: Writer | None, work: Sequence[_Work]) -> _Plan:
        keys = [document_key(w.document.id) for w in work]
        plan = _Plan()
        if writer is not None:
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

    def _extract(self, work: Sequence[_Work], plan: _Plan, report: IndexReport) -> None:
        owners = {w.document.id: w for w in work}
        fresh = [p for p in plan.fresh if p.id not in owners[p.doc_id].found]
        for passage, extraction in zip(fresh, self.extractor.extract(fresh) if fresh else (), strict=True):
            owners[passage.doc_id].found[passage.id] = extraction
            place = f"{passage.doc_id}, passage {passage.position}"
            for warning in extraction.warnings:
                self._warn(report, f"{place}: {warning}")

    def _write_entities(self, writer: Writer, work: Sequence[_Work], relations: Sequence[Relation]) -> int:
        """Write the entities that are new; how many. A passage of which one was lost fails, to be done again."""
        found = _entities(relations)
        stored = self.store.refuse_collisions("entities", {e.id: e.name for e in found})
        entities = [e for e in found if e.id not in stored]
        lost = writer.entities(entities, self.vectorizer.entities(entities))
        for one in work if lost else ():
            for relation in (r for r in relations if r.doc_id == one.document.id and lost & set(r.entity_ids)):
                reason = f"Milvus does not keep an entity of {relation.text[:60]!r} that it took; index again"
                one.found[relation.passage_id] = replace(one.found[relation.passage_id], failure=reason)
        return len(entities)

    def _write_passages(
        self, writer: Writer, work: Sequence[_Work], plan: _Plan, relations: Sequence[Relation], vectors: Vectors
    ) -> None:
        """Write relations, then the passages whose rows say that these, and no others, are there."""
        passages = {p.id: p for p in plan.fresh}
        new = {r.id for r in relations}
        titles = [passages[r.passage_id].title for r in relations]
        writer.reopen_passages([p for p, old in plan.old_passages.items() if p in passages and old.recipe])
        writer.relations(relations, self.vectorizer.relations(relations, titles), passages)
        self.store.delete("relations", ids=[r for r, p in plan.old_relations.items() if p in passages and r not in new])
        failed = {p for w in work for p, extraction in w.found.items() if extraction.failure}
        recipes = ["" if p.id in failed else self._recipe(p) for p in plan.fresh]
        writer.passages(plan.fresh, vectors, recipes, Counter(r.passage_id for r in relations))

    def _move(self, writer: Writer, work: Sequence[_Work], plan: _Plan) -> None:
        """Keep position and metadata of passages that stayed as they would be in a new index."""
        stayed = [(p, plan.kept[p.id]) for w in work for p in w.passages if p.id in plan.kept]
        described = {p.id: p for p, old in stayed if _json(old.metadata) != _json(p.metadata)}
        moved = [p for p, old in stayed if p.id in described or old.position != p.position]
        # Relations first: a passage row with the new metadata says that its relations have it too.
        writer.describe({r: described[p] for r, p in plan.old_relations.items() if p in described})
        writer.move(moved)

    def _remove_stale(self, work: Sequence[_Work], plan: _Plan) -> None:
        present = {p.id for w in work for p in w.passages}
        self.store.delete("relations", ids=[r for r, p in plan.old_relations.items() if p not in present])
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

    def _close(
        self, writer: Writer, work: Sequence[_Work], counts: Mapping[str, tuple[int, int]], report: IndexReport
    ) -> None:
        """Write the rows that say that documents are finished, and say so of those that Milvus kept."""
        hashes = {w.document.id: "" if w.failures else w.hash for w in work}
        writer.documents([w.document for w in work], [p.id for w in work for p in w.passages], hashes, counts)
        stored = writer.stored(list(hashes))
        for one in work:
            if one.failures:
                report.failed.append(_failure(one.document, "; ".join(one.failures[:3])))
            elif stored.get(one.document.id, StoredDocument()).hash != one.hash:
                reason = "Milvus does not keep the document's own row that it took; index again"
                report.failed.append(_failure(one.document, reason))
            elif one.updated:
                report.updated += 1
            else:
                report.added += 1


def _accept(document: Document | ReadFailure, report: IndexReport) -> Document | None:
    """The document with its id and clean texts, or None where it could not be read or cannot be kept."""
    if isinstance(document, ReadFailure):
        report.failed.append({"source": document.source, "reason": document.reason})
        return None
    try:
        return _usable(document)
    except InputError as error:
        report.failed.append(_failure(document, str(error)))
        return None


def _usable(document: Document) -> Document:
    _check(document)
    triplets: Any = document.triplets  # callers need not be typed
    text, title = _clean(document.text), _clean(document.title)
    return replace(
        document,
        id=stored_id(document.id) or f"text-{content_hash('text', title, text)[:16]}",
        title=title,
        text=text,
        source=_clean(document.source),
        metadata=_metadata(document.metadata),
        triplets=tuple(triplets) if isinstance(triplets, Iterator) else triplets,  # they are read more than once
    )


def stored_id(doc_id: str) -> str:
    """The id under which a document is kept: what no database holds is written as an escape, so that ids stay apart."""
    return doc_id.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def _check(document: Document) -> None:
    text: Any = document.text  # callers need not be typed
    if not isinstance(text, str) or not text.strip():
        raise InputError("the text is empty; a document needs some")
    for name, limit in (("id", MAX_ID_BYTES), ("title", MAX_BYTES), ("source", MAX_BYTES)):
        value = getattr(document, name)
        if not isinstance(value, str):
            raise InputError(f"{name} is {value!r:.80}; it must be a text")
        used = len((stored_id(value) if name == "id" else _clean(value)).encode())
        if used > limit:
            raise InputError(f"{name} has {used:,} bytes; the most is {limit:,}")


def _metadata(given: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata as it comes back from JSON.

    Raises:
        InputError: it is no JSON, or too much.
    """
    try:
        text = _clean(json.dumps(dict(given), ensure_ascii=False, allow_nan=False))
        metadata: dict[str, Any] = json.loads(text, parse_int=_int64)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"metadata is not JSON ({error}); give texts, finite numbers, lists and mappings") from None
    used = len(text.encode())
    if used > MAX_BYTES:
        raise InputError(f"metadata has {used:,} bytes as JSON; the most is {MAX_BYTES:,}")
    return metadata


def _int64(digits: str) -> int:
    value = int(digits)
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{digits:.40} has more than 64 bits")
    return value


def _clean(text: str) -> str:
    """Without lone surrogates, which no UTF-8 can hold, and without NUL, which C++ engines end a text at."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")


def _relations(passages: Sequence[Passage], work: Sequence[_Work]) -> list[Relation]:
    found = {w.document.id: w.found for w in work}
    return [r for p in passages for r in _relations_of(p, found[p.doc_id][p.id].relations)]


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


def _anew(old: str, new: str, splitter: str, extractor: str) -> list[str]:
    """What happens anew to a document because of settings alone, where it was finished with others."""
    before, after = old.split("."), new.split(".")
    if len(before) != len(after):
        return []
    changed = zip(before[1:], after[1:], (("split", splitter), ("extracted", extractor)), strict=True)
    return [f"{what} again, since that is done by {recipe!r} now" for a, b, (what, recipe) in changed if a != b]


def _failure(document: Document, reason: str) -> dict[str, str]:
    return {"source": str(document.id or document.source or str(document.text)[:60]), "reason": reason}


def _fingerprint(triplets: object) -> str:
    """A text that changes with the triplets, whatever is in them."""
    return ",".join(map(_json, triplets)) if isinstance(triplets, (list, tuple)) else _json(triplets)


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, default=_as_json)
    except (TypeError, ValueError, RecursionError):  # mixed keys, an integer of thousands of digits, lists in lists
        return type(value).__name__


def _as_json(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else type(value).__name__
