"""Indexing: documents in, rows in Milvus out, a window of documents at a time.

Whatever is interrupted, and wherever, is completed by running the same again: finished documents are
recognised by their hash, finished passages of the others by their recipe, and ids derive from content.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from graphrag_milvus.builder.enricher import Enricher
from graphrag_milvus.builder.extractors import Extractor
from graphrag_milvus.builder.intake import accept, as_text, checked_metadata, clean, failed, fingerprint
from graphrag_milvus.builder.readers import ReadFailure
from graphrag_milvus.builder.splitters import OutlineSplitter, Splitter, split
from graphrag_milvus.builder.vectorizer import Vectorizer, Vectors
from graphrag_milvus.builder.writer import StoredDocument, StoredPassage, Writer, document_key
from graphrag_milvus.errors import EmbeddingError, IdCollisionError, InputError
from graphrag_milvus.store import Collection, MilvusStore
from graphrag_milvus.types import (
    Document,
    Enriched,
    Enrichment,
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
_WINDOW_CHARACTERS = 4_000_000  # of texts in work at once: a window of long documents has fewer of them
_OUTAGES = 3  # windows in a row for which there were no vectors, after which there is no point in going on
_WARNINGS = 1_000  # that are kept; the others are counted


@dataclass
class _Work:
    """One document on its way; `found` and `enriched` keep what models said by passage, to ask for nothing twice."""

    document: Document
    hash: str
    updated: bool
    passages: list[Passage]
    found: dict[int, Extraction] = field(default_factory=dict)
    enriched: dict[int, Enriched] = field(default_factory=dict)

    @property
    def unfinished(self) -> set[int]:
        """Passages that the next run does again."""
        failed = {passage for passage, one in self.found.items() if one.failure}
        return failed | {passage for passage, one in self.enriched.items() if one.failure}

    @property
    def failures(self) -> list[str]:
        """Why which passages lack relations."""
        extractions = [(p.position, self.found[p.id]) for p in self.passages if p.id in self.found]
        return [f"passage {position}: {one.failure}" for position, one in extractions if one.failure]


@dataclass
class _Plan:
    """What a window has to do: which passages are new, which are there, which rows are to go."""

    fresh: list[Passage] = field(default_factory=list)
    kept: dict[int, StoredPassage] = field(default_factory=dict)
    old_passages: dict[int, StoredPassage] = field(default_factory=dict)
    old_relations: dict[int, int] = field(default_factory=dict)
    old_enrichments: dict[int, int] = field(default_factory=dict)

    @property
    def owned(self) -> tuple[tuple[Collection, dict[int, int]], ...]:
        """Rows that belong to passages, by collection: the passage of each."""
        return ("relations", self.old_relations), ("enrichments", self.old_enrichments)


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
        enricher: writes what passages are found by; None removes what an earlier one wrote.
    """

    store: MilvusStore
    extractor: Extractor
    vectorizer: Vectorizer
    passage_size: int = 1_200
    window: int = 256
    on_progress: Callable[[int], None] = lambda _: None
    splitter: Splitter | None = None
    enricher: Enricher | None = None
    _began: int = field(default=0, init=False, repr=False)  # milliseconds since 1970
    _enriched: bool = field(default=False, init=False, repr=False)  # the workspace may have enrichments
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
        if self.enricher is not None:
            self.store.keep_enrichments()
        self._enriched = self.store.is_enriched()
        for window in self._windows(documents, report):
            self._index(window, report)
            self.on_progress(len(window))
        if report.passages:
            self.store.flush()
        if report.unenriched:
            report.warnings.append(f"{report.unenriched:,} passages were not enriched; index again to try them again")
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
        self._enriched = not empty and self.store.is_enriched()
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
            document = accept(item, report)
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
                report.failed.extend(failed(one.document, str(error)) for one in work)
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
                report.failed.append(failed(document, str(error)))
                continue
            self._redone.update(_anew(old.hash, digest, self._splitter.recipe, self._reading))
            work.append(_Work(document, digest, old.indexed_at > 0, passages))
        return work

    @property
    def _splitter(self) -> Splitter:
        return self.splitter or OutlineSplitter(self.passage_size)

    @property
    def _reading(self) -> str:
        """Changes with all that decides what is found in a passage, and what it is found by."""
        return self.extractor.recipe if self.enricher is None else f"{self.extractor.recipe} | {self.enricher.recipe}"

    def _split(self, document: Document) -> list[Passage]:
        """The passages; what the splitter says of one has to be storable as the document's metadata has."""
        passages = split(document, self.passage_size, self._splitter)
        if not passages:
            raise InputError(f"splitter {self._splitter.recipe!r} gave no passage of {document.text.strip()[:60]!r}")
        return [
            p if p.metadata is document.metadata else replace(p, metadata=checked_metadata(p.metadata))
            for p in passages
        ]

    def _hash(self, document: Document) -> str:
        """Of the document, of the splitter and of what reads it, so that what changed can be told."""
        parts = self._content(document), content_hash(self._splitter.recipe), content_hash(self._reading)
        return ".".join((parts[0], parts[1][:15], parts[2][:15]))

    def _content(self, document: Document) -> str:
        return content_hash(
            _VERSION,
            document.title,
            document.source,
            document.text,
            as_text(document.metadata),
            fingerprint(document.triplets),
        )

    def _recipe(self, passage: Passage, enrichments: int) -> str:
        """Changes with all that relations and vector are made of, beside title and text, which the id has.

        Of a passage that has enrichments it tells how many, so that lost ones are noticed.
        """
        recipe = content_hash(_VERSION, self._reading, fingerprint(passage.triplets), *passage.headings)
        return f"{recipe}.{enrichments}" if enrichments else recipe

    def _write(self, writer: Writer, work: Sequence[_Work], report: IndexReport) -> None:
        writer.open([w.document for w in work], self.vectorizer.dimension)
        plan = self._plan(writer, work)
        vectors = self.vectorizer.passages(plan.fresh)  # before a model is paid for what could not be embedded
        self._extract(work, plan, report)
        self._enrich(work, plan, report)
        relations, enrichments = _relations(plan.fresh, work), _enrichments(plan.fresh, work)
        entities = self._write_entities(writer, work, relations)
        self._write_passages(writer, work, plan, relations, enrichments, vectors=vectors)
        self._move(writer, work, plan)
        self._remove_stale(work, plan)
        self.store.touch()  # before a document counts as finished, since nothing does it for a finished one
        counts = _expected(work, plan, relations, enrichments)
        self._close(writer, self._confirm(writer, work, counts, report), counts, report)
        report.passages += len(plan.fresh)
        report.relations += len(relations)
        report.entities += entities
        report.enriched += len({e.passage_id for e in enrichments})
        report.unenriched += sum(bool(one.failure) for w in work for one in w.enriched.values())

    def _plan(self, writer: Writer | None, work: Sequence[_Work]) -> _Plan:
        keys = [document_key(w.document.id) for w in work]
        plan = _Plan()
        if writer is not None:
            plan = _Plan(old_passages=writer.passages_of(keys), old_relations=writer.owners("relations", keys))
            plan.old_enrichments = writer.owners("enrichments", keys) if self._enriched else {}
        have, written = Counter(plan.old_relations.values()), Counter(plan.old_enrichments.values())
        for passage in (p for w in work for p in w.passages):
            old = plan.old_passages.get(passage.id)
            # A row whose relations are not all there was written by an engine that lost some.
            recipe = self._recipe(passage, written[passage.id])
            if old and old.recipe == recipe and have[passage.id] == old.relations:
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

    def _enrich(self, work: Sequence[_Work], plan: _Plan, report: IndexReport) -> None:
        if self.enricher is None:
            return
        owners = {w.document.id: w for w in work}
        fresh = [p for p in plan.fresh if p.id not in owners[p.doc_id].enriched]
        for passage, enriched in zip(fresh, self.enricher.enrich(fresh), strict=True):
            owners[passage.doc_id].enriched[passage.id] = enriched
            place = f"{passage.doc_id}, passage {passage.position}"
            failure = (f"not enriched: {enriched.failure}",) if enriched.failure else ()
            for warning in (*enriched.warnings, *failure):
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
        self,
        writer: Writer,
        work: Sequence[_Work],
        plan: _Plan,
        relations: Sequence[Relation],
        enrichments: Sequence[Enrichment],
        *,
        vectors: Vectors,
    ) -> None:
        """Write relations and enrichments, then the passages whose rows say that these, and no others, are there."""
        passages = {p.id: p for p in plan.fresh}
        titles = [passages[r.passage_id].title for r in relations]
        writer.reopen_passages([p for p, old in plan.old_passages.items() if p in passages and old.recipe])
        writer.relations(relations, self.vectorizer.relations(relations, titles), passages)
        if enrichments:
            writer.enrichments(enrichments, self.vectorizer.enrichments(enrichments), passages)
        new = {r.id for r in relations} | {e.id for e in enrichments}
        self._drop(plan, lambda row, passage: passage in passages and row not in new)
        written = Counter(e.passage_id for e in enrichments)
        unfinished = {p for w in work for p in w.unfinished}
        recipes = ["" if p.id in unfinished else self._recipe(p, written[p.id]) for p in plan.fresh]
        writer.passages(plan.fresh, vectors, recipes, Counter(r.passage_id for r in relations))

    def _drop(self, plan: _Plan, stale: Callable[[int, int], bool]) -> None:
        """Delete those of the old rows of passages that are `stale` by their id and their passage's."""
        for collection, owned in plan.owned:
            ids = [row for row, passage in owned.items() if stale(row, passage)]
            if ids:
                self.store.delete(collection, ids=ids)

    def _move(self, writer: Writer, work: Sequence[_Work], plan: _Plan) -> None:
        """Keep position and metadata of passages that stayed as they would be in a new index."""
        stayed = [(p, plan.kept[p.id]) for w in work for p in w.passages if p.id in plan.kept]
        described = {p.id: p for p, old in stayed if as_text(old.metadata) != as_text(p.metadata)}
        moved = [p for p, old in stayed if p.id in described or old.position != p.position]
        # Passages last: a row with the new metadata says that what belongs to the passage has it too.
        for collection, owned in plan.owned if described else ():
            writer.describe(collection, {row: described[p] for row, p in owned.items() if p in described})
        writer.move(moved)

    def _remove_stale(self, work: Sequence[_Work], plan: _Plan) -> None:
        present = {p.id for w in work for p in w.passages}
        self._drop(plan, lambda _, passage: passage not in present)
        self.store.delete("passages", ids=[p for p in plan.old_passages if p not in present])

    def _confirm(
        self, writer: Writer, work: Sequence[_Work], counts: dict[str, tuple[int, ...]], report: IndexReport
    ) -> list[_Work]:
        """The documents whose rows are all there when they are counted, whatever the engine acknowledged."""
        keys = {document_key(w.document.id): w for w in work}
        filter = f"doc in {list(keys)}"
        names: tuple[Collection, ...] = ("passages", "relations")
        names = (*names, "enrichments") if self._enriched else names
        sums = [self.store.count(name, filter) for name in names]
        if sums == [sum(c[n] for c in counts.values()) for n in range(len(names))]:
            return list(work)
        found = [writer.counts(name, list(keys)) for name in names]
        complete = []
        for key, one in keys.items():
            kept, wanted = tuple(rows[key] for rows in found), counts[one.document.id][: len(names)]
            if kept == wanted:
                complete.append(one)
            else:
                reason = f"Milvus keeps {kept} {', '.join(names)} of {wanted} that it took; index again"
                report.failed.append(failed(one.document, reason))
        return complete

    def _close(
        self, writer: Writer, work: Sequence[_Work], counts: Mapping[str, tuple[int, ...]], report: IndexReport
    ) -> None:
        """Write the rows that say that documents are finished, and say so of those that Milvus kept."""
        hashes = {w.document.id: "" if w.unfinished else w.hash for w in work}
        writer.documents([w.document for w in work], [p.id for w in work for p in w.passages], hashes, counts)
        stored = writer.stored(list(hashes))
        for one in work:
            if one.failures:
                report.failed.append(failed(one.document, "; ".join(one.failures[:3])))
            elif stored.get(one.document.id, StoredDocument()).hash != hashes[one.document.id]:
                reason = "Milvus does not keep the document's own row that it took; index again"
                report.failed.append(failed(one.document, reason))
            elif one.updated:
                report.updated += 1
            else:
                report.added += 1


def _relations(passages: Sequence[Passage], work: Sequence[_Work]) -> list[Relation]:
    found = {w.document.id: w.found for w in work}
    return [r for p in passages for r in _relations_of(p, found[p.doc_id][p.id].relations)]


def _relations_of(passage: Passage, extracted: Sequence[ExtractedRelation]) -> Iterator[Relation]:
    """With ids: equal relations of one passage are told apart by their number."""
    seen: Counter[tuple[str, str, tuple[str, ...]]] = Counter()
    for one in extracted:
        names = tuple(name for name in (clean(n) for n in one.names) if normalize_name(name))
        key = (clean(one.text), clean(one.predicate), names)
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


def _enrichments(passages: Sequence[Passage], work: Sequence[_Work]) -> list[Enrichment]:
    enriched = {passage: one for w in work for passage, one in w.enriched.items()}
    return [e for p in passages if p.id in enriched for e in _enrichments_of(p, enriched[p.id])]


def _enrichments_of(passage: Passage, enriched: Enriched) -> Iterator[Enrichment]:
    for kind, text in dict.fromkeys((kind, clean(text)) for kind, text in enriched.texts):
        key = content_id("enrichment", str(passage.id), kind, text)
        yield Enrichment(key, kind, text, passage.id, passage.doc_id)


def _expected(
    work: Sequence[_Work], plan: _Plan, relations: Sequence[Relation], enrichments: Sequence[Enrichment]
) -> dict[str, tuple[int, ...]]:
    """Passages, relations and enrichments that each document must have."""
    fresh, written = Counter(r.doc_id for r in relations), Counter(e.doc_id for e in enrichments)
    old = Counter(plan.old_enrichments.values())
    expected: dict[str, tuple[int, ...]] = {}
    for one in work:
        kept = [plan.kept[p.id] for p in one.passages if p.id in plan.kept]
        expected[one.document.id] = (
            len(one.passages),
            fresh[one.document.id] + sum(passage.relations for passage in kept),
            written[one.document.id] + sum(old[passage.id] for passage in kept),
        )
    return expected


def _anew(old: str, new: str, splitter: str, extractor: str) -> list[str]:
    """What happens anew to a document because of settings alone, where it was finished with others."""
    before, after = old.split("."), new.split(".")
    if len(before) != len(after):
        return []
    changed = zip(before[1:], after[1:], (("split", splitter), ("extracted", extractor)), strict=True)
    return [f"{what} again, since that is done by {recipe!r} now" for a, b, (what, recipe) in changed if a != b]
