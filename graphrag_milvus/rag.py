"""GraphRAG: one object to index, retrieve, ask and look after a workspace."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from tqdm.auto import tqdm

from graphrag_milvus.builder.enricher import Enricher, make_enricher
from graphrag_milvus.builder.estimate import Estimate, Estimator, Prices, expected_documents
from graphrag_milvus.builder.extractors import Extractor, make_extractor
from graphrag_milvus.builder.intake import stored_id
from graphrag_milvus.builder.pipeline import Pipeline
from graphrag_milvus.builder.readers import ReadFailure, read, shard_of
from graphrag_milvus.builder.splitters import AnySplitter, Splitter, as_splitter, make_splitter
from graphrag_milvus.builder.vectorizer import Vectorizer
from graphrag_milvus.builder.writer import Writer
from graphrag_milvus.cache import Cache
from graphrag_milvus.embeddings import Embedder, LocalEmbeddings, make_embedder
from graphrag_milvus.errors import SettingsError
from graphrag_milvus.hits import counting
from graphrag_milvus.llm import LLM, make_llm
from graphrag_milvus.retrieval.base import Method, Resources, check_question
from graphrag_milvus.retrieval.kg2rag import ABLATIONS, KG2RAG
from graphrag_milvus.retrieval.mutual import MutualIndex, Shown
from graphrag_milvus.retrieval.naive import Hybrid, Naive
from graphrag_milvus.retrieval.ppr import PPR
from graphrag_milvus.retrieval.reranker import make_reranker, rerank
from graphrag_milvus.retrieval.retriever import PassageRetriever
from graphrag_milvus.retrieval.scorers import CrossEncoder, Scorer
from graphrag_milvus.retrieval.snapshot import Snapshots, SnapshotSource
from graphrag_milvus.retrieval.subgraph import Subgraph
from graphrag_milvus.settings import Settings, load_settings
from graphrag_milvus.solver.generator import Generator
from graphrag_milvus.store import MilvusStore
from graphrag_milvus.types import (
    Answer,
    DeleteReport,
    Document,
    DocumentRecord,
    IndexReport,
    Retrieval,
    Stats,
    Trace,
    content_hash,
)

__all__ = ["ALL_METHODS", "METHODS", "GraphRAG", "Source"]

METHODS: dict[str, Callable[[Resources], Method]] = {
    "naive": Naive,
    "hybrid": Hybrid,
    "subgraph": Subgraph,
    "kg2rag": KG2RAG,
    "ppr": PPR,
}
"""The methods by name; `auto` picks one of them."""
ALL_METHODS = {**METHODS, **ABLATIONS}
"""Those, and parts of one of them, for measurements."""

Source: TypeAlias = "str | Document | Path | Mapping[str, Any]"
"""A text, a document, a path of files, or a mapping with the fields of a document."""


class GraphRAG:
    """A workspace of documents in Milvus that answers questions over several of them.

    Nothing is loaded or connected before it is needed. Use it in a `with` block, or `close` it.

    Args:
        settings: where things are and how they are done; read from the environment where it is not given.
        llm: a chat model in place of the one that the settings name.
        embeddings: an embedder in place of the one that the settings name.
        extractor: an extractor in place of the one that the settings name.
        splitter: a splitter in place of the one that the settings name: a function from a text to texts, or to
            pairs of a text and its metadata; or an object with a method `split` that does this. langchain's
            splitters fit. Name it anew in an attribute `recipe` when it changes, so that documents are split again.

    Raises:
        SettingsError: a setting cannot be used.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        llm: BaseChatModel | None = None,
        embeddings: Embeddings | None = None,
        extractor: Extractor | None = None,
        splitter: AnySplitter | None = None,
    ) -> None:
        self.settings = settings or load_settings()
        self._chat_model = llm
        self._embeddings = embeddings
        self._extractor = extractor
        self._splitter = splitter

    def __enter__(self) -> GraphRAG:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of Milvus and the cache; the object can still be used, and connects again then."""
        self.store.close()
        if "cache" in self.__dict__ and self.cache is not None:
            self.cache.close()

    # Parts

    @cached_property
    def store(self) -> MilvusStore:
        """The collections of the workspace."""
        return MilvusStore(self.settings.milvus, self.settings.workspace)

    @cached_property
    def embedder(self) -> Embedder:
        """What makes vectors."""
        if self._embeddings is not None:
            return Embedder(self._embeddings, batch_size=self.settings.embedding.batch_size)
        return make_embedder(self.settings.embedding, self.settings.llm)

    @cached_property
    def llm(self) -> LLM | None:
        """The chat model, or None where none is configured."""
        if self._chat_model is not None:
            return LLM(self._chat_model, concurrency=self.settings.llm.concurrency)
        return make_llm(self.settings.llm)

    @cached_property
    def cache(self) -> Cache | None:
        """What indexing remembers of model and embedder, or None where that is switched off."""
        settings = self.settings.cache
        return Cache(self.settings.cache_folder, settings.max_mb << 20) if settings.enabled else None

    @cached_property
    def scorer(self) -> Scorer | None:
        """The cross-encoder, or None where none is configured; it is loaded at its first use."""
        folder = self.settings.retrieval.cross_encoder
        return CrossEncoder(folder) if folder else None

    @cached_property
    def _snapshots(self) -> SnapshotSource:
        return SnapshotSource(self.store)

    @property
    def _resources(self) -> Resources:
        return Resources(self.store, self.embedder, self._snapshots, self.settings.retrieval, self.llm, self.scorer)

    # Documents

    def add(
        self,
        sources: Source | Iterable[Source],
        *,
        extractor: str | None = None,
        enrich: str | None = None,
        shard: tuple[int, int] | None = None,
        text_column: str = "",
        progress: bool | None = None,
    ) -> IndexReport:
        """Index documents: new ones are added, changed ones redone where they changed, the same ones left alone.

        Interrupted, it is completed by calling it again. One bad document does not stop the others.

        Args:
            sources: texts, `Document`s, mappings with a document's fields, or `Path`s of files and folders.
            extractor: `auto`, `given`, `local`, `llm` or several joined by `+`, in place of the setting.
            enrich: what the chat model writes about passages so that they are found by it, too: of `title`, `summary`
                and `questions` those wanted, joined by commas, or `none`; in place of the setting.
            shard: `(i, n)` indexes only the i-th of n equal parts, from `(1, n)` to `(n, n)`.
            text_column: the column of tables, or field of JSON rows, that holds the text, where its name is unusual.
            progress: show a progress bar; left out, one is shown where somebody can see it.

        Raises:
            SettingsError: the extractor or the splitter needs something that is not set, or cannot use it.
            WorkspaceMismatchError: the workspace has vectors of another embedding model.
            StoreError: Milvus failed; call again to go on.
        """
        embedder = self.embedder.caching(self.cache)
        chosen, splitter = self._make_extractor(extractor), self._make_splitter(embedder)
        enricher = self._make_enricher(enrich)
        self.store.open(model=embedder.name, dimension=embedder.dimension)
        items, total = _counted(sources, shard)
        documents = _part(_documents(items, text_column), shard)
        with ExitStack() as stack:
            bar = stack.enter_context(_bar(total, progress))
            meter = stack.enter_context(self.llm.meter()) if self.llm is not None else None
            batch = stack.enter_context(self.llm.batch(self.cache)) if self.llm is not None else None
            report = self._pipeline(chosen, splitter, embedder, bar, enricher).run(documents)
        if meter is not None and batch is not None:
            report.llm_calls, report.tokens, report.llm_cached = meter.usage.calls, meter.usage.tokens, batch.recalled
        if self.cache is not None and self.cache.problem:
            report.warnings.append(self.cache.problem)
        return report

    def estimate(
        self,
        sources: Source | Iterable[Source],
        *,
        extractor: str | None = None,
        enrich: str | None = None,
        shard: tuple[int, int] | None = None,
        text_column: str = "",
        prices: Prices | None = None,
        progress: bool | None = None,
    ) -> Estimate:
        """What `add` with the same arguments would do and cost. Writes nothing, and asks no chat model and no embedder.

        A splitter that needs vectors (`meaning`) is taken to be the one by length, unless the model is local.

        Args:
            prices: in place of those in the settings.

        Raises:
            SettingsError: as in `add`.
        """
        llm, embedding = self.settings.llm, self.settings.embedding
        prices = prices or Prices(llm.price_in, llm.price_out, embedding.price)
        enricher = self._make_enricher(enrich)
        estimator = Estimator(self._make_extractor(extractor), prices, enricher=enricher)
        items, total = _counted(sources, shard)
        report = IndexReport()
        with _bar(total, progress, "estimating") as bar:
            splitter = self._free_splitter(report)
            pipeline = self._pipeline(estimator.extractor, splitter, self.embedder, bar, enricher)
            for passages in pipeline.ahead(_part(_documents(items, text_column), shard), report, empty=self._is_new):
                estimator.add(passages)
        return estimator.result(report)

    def delete(self, doc_ids: Sequence[str]) -> DeleteReport:
        """Delete documents with everything that is theirs."""
        ids = [stored_id(doc_id) for doc_id in ([doc_ids] if isinstance(doc_ids, str) else doc_ids)]
        deleted = Writer(self.store).remove(ids) if self.store.exists() else []
        missing = dict.fromkeys(ids)
        for doc_id in deleted:
            del missing[doc_id]
        return DeleteReport(deleted, list(missing))

    def documents(self) -> list[DocumentRecord]:
        """The documents of the workspace, by id."""
        fields = ["doc_id", "title", "source", "hash", "passages", "relations", "indexed_at", "metadata"]
        return sorted((_record(row) for row in self.store.iterate("documents", fields)), key=lambda record: record.id)

    def gc(self) -> int:
        """Delete entities that no relation holds any more; how many there were. Not while indexing."""
        return Writer(self.store).collect_garbage()

    def stats(self) -> Stats:
        """Row counts of the workspace and what it was built with."""
        meta = self.store.meta() or {}
        return Stats(
            workspace=self.settings.workspace,
            documents=self.store.count("documents"),
            passages=self.store.count("passages"),
            relations=self.store.count("relations"),
            entities=self.store.count("entities"),
            enrichments=self.store.count("enrichments") if self.store.is_enriched(meta) else 0,
            incomplete=self.store.count("documents", 'hash == ""'),
            embedding=str(meta.get("model", "")),
            dimension=int(meta.get("dimension", 0)),
        )

    def show(self, what: str | int, *, filter: str = "", limit: int = 20) -> Shown:
        """What is stored under a passage's id or an entity's name, in any spelling, and what that is tied to.

        Homonyms of different types come one by one. Where nothing is known, `close` has names that are spelled nearly
        so.

        Args:
            what: an id as `retrieve` gives it, or a name.
            filter: as in `retrieve`.
            limit: relations that are shown of one entity at the most; how many it has is told.

        Raises:
            InputError: `what` is empty, the filter is not understood, or the limit is out of range.
        """
        enriched = self.store.is_enriched()
        return MutualIndex(self.store, self._snapshots, filter.strip(), limit, enriched).look_up(str(what))

    # Questions

    def retrieve(
        self, question: str, *, method: str | None = None, k: int | None = None, filter: str = ""
    ) -> Retrieval:
        """The passages that answer a question, and how they were found.

        Args:
            method: `auto`, `naive`, `hybrid` or `subgraph`, in place of the setting.
            k: passages at the most, in place of the setting.
            filter: a Milvus expression on `doc_id`, `title` or `metadata["key"]`; what it excludes appears nowhere.

        Raises:
            InputError: the question is empty, `k` is out of range, or the filter is not understood.
            SettingsError: the method is unknown, or the second stage needs a model that is not configured.
        """
        k = self.settings.retrieval.top_k if k is None else k
        name, filter = method or self.settings.retrieval.method, filter.strip()
        check_question(question, k, filter)
        _check_method(name)
        with counting() as trips:
            meta = self.store.meta()
            if meta is None:
                return self._nothing(question, method or "none", trips.count)
            self.store.check(model=self.embedder.name, dimension=self.embedder.dimension, meta=meta)
            seen = Snapshots(self._snapshots, self.store.revision(meta))
            resources = replace(self._resources, snapshots=seen, enriched=self.store.is_enriched(meta))
            name, why = self._choose(name, resources)
        found = _find(name, resources, question, k, filter)
        found.trace.notes[:0] = [why] if why else []
        found.trace.round_trips += trips.count
        return found

    def ask(self, question: str, *, method: str | None = None, k: int | None = None, filter: str = "") -> Answer:
        """Retrieve, and answer with citations; without a model the answer is made of the passages' sentences."""
        return self._generator.answer(self.retrieve(question, method=method, k=k, filter=filter))

    def stream(
        self, question: str, *, method: str | None = None, k: int | None = None, filter: str = ""
    ) -> Iterator[str | Answer]:
        """Like `ask`, but gives the text in pieces as the model writes it, and at the end the `Answer`."""
        return self._generator.stream(self.retrieve(question, method=method, k=k, filter=filter))

    def as_retriever(self, *, method: str | None = None, k: int | None = None, filter: str = "") -> PassageRetriever:
        """A langchain retriever; `auto` is decided at each question."""
        top_k = self.settings.retrieval.top_k if k is None else k
        return PassageRetriever(method=_Bound(self, method), k=top_k, filter=filter)

    # Inside

    @property
    def _generator(self) -> Generator:
        return Generator(self.embedder, self.llm)

    def _make_extractor(self, name: str | None) -> Extractor:
        if name is None and self._extractor is not None:
            return self._extractor
        index = self.settings.index
        return make_extractor(name or index.extractor, llm=self.llm, spacy_model=index.spacy_model)

    def _make_enricher(self, parts: str | None) -> Enricher | None:
        return make_enricher(self.settings.index.enrich if parts is None else parts, self.llm)

    def _make_splitter(self, embedder: Embedder) -> Splitter:
        if self._splitter is not None:
            return as_splitter(self._splitter)
        return make_splitter(self.settings.index, embedder)

    def _free_splitter(self, report: IndexReport) -> Splitter:
        """The splitter, or where it would ask an endpoint for vectors another one, and a warning."""
        index = self.settings.index
        local = isinstance(self.embedder.embeddings, LocalEmbeddings)
        if self._splitter is not None or index.splitter != "meaning" or local:
            return self._make_splitter(self.embedder)
        report.warnings.append("passages are estimated by length: to split them by meaning takes vectors")
        return make_splitter(index.model_copy(update={"splitter": "length"}), self.embedder)

    @property
    def _is_new(self) -> bool:
        """True where there is no database yet, which to look into would make."""
        return self.settings.milvus.embedded and not Path(self.settings.milvus.uri).expanduser().exists()

    def _pipeline(
        self, extractor: Extractor, splitter: Splitter, embedder: Embedder, bar: Any, enricher: Enricher | None
    ) -> Pipeline:
        index = self.settings.index
        # A model is slow and paid for: a small window keeps what an interruption costs small.
        asked = "llm" in extractor.name or enricher is not None
        window = min(index.window, 2 * self.settings.llm.concurrency) if asked else index.window
        return Pipeline(
            self.store,
            extractor,
            Vectorizer(embedder),
            index.passage_size,
            window,
            bar.update,
            splitter,
            enricher,
        )

    def _choose(self, method: str, resources: Resources) -> tuple[str, str]:
        """The method's name and, for `auto`, why it is this one."""
        if method != "auto":
            return method, ""
        snapshot = resources.snapshots.get()
        relations = len(snapshot.incidence.relation_ids)
        if not relations:
            return "hybrid", "auto: hybrid, since no relation was found in the documents"
        # Without a model, ppr has the best Recall@5 on sentences, and on triples the same as subgraph. With one,
        # only published figures are at hand: a model's selection among triples is above both there.
        if self.llm is not None and 2 * snapshot.sentences < relations:
            return "subgraph", "auto: subgraph, since the chat model can select among triples"
        return "ppr", "auto: ppr, since there are relations to walk along"

    def _nothing(self, question: str, method: str, round_trips: int) -> Retrieval:
        note = f"nothing is indexed in workspace {self.settings.workspace!r} at {self.store.uri}"
        return Retrieval(question, method, [], Trace(method=method, round_trips=round_trips, notes=[note]))


class _Bound:
    """A method that the facade looks up at each question."""

    def __init__(self, rag: GraphRAG, method: str | None) -> None:
        self.rag = rag
        self.name = method or rag.settings.retrieval.method

    def retrieve(self, question: str, k: int, filter: str = "") -> Retrieval:
        return self.rag.retrieve(question, method=self.name, k=k, filter=filter)


def _find(method: str, resources: Resources, question: str, k: int, filter: str) -> Retrieval:
    """What the method finds, in the order of the second stage where there is one, which sees more than `k`."""
    reranker = make_reranker(resources)
    chosen = ALL_METHODS[method](resources)
    if reranker is None or k == 0:
        return chosen.retrieve(question, k, filter)
    return rerank(chosen.retrieve(question, max(k, resources.settings.rerank_passages), filter), reranker, k)


def _check_method(name: str) -> None:
    if name not in ("auto", *ALL_METHODS):
        raise SettingsError(f"there is no method {name!r}; known are auto, {', '.join(METHODS)}")


def _counted(
    sources: Source | Iterable[Source], shard: tuple[int, int] | None
) -> tuple[Iterable[Source], Callable[[], int | None]]:
    """The sources one by one, and what tells about how many documents they are, where that can be told."""
    items: Iterable[Source] = [sources] if isinstance(sources, (str, Document, Path, Mapping)) else sources

    def total() -> int | None:
        if not isinstance(items, Sized):
            return None
        paths = [item for item in items if isinstance(item, Path)]
        files = expected_documents(paths)
        return None if files is None else (files + len(items) - len(paths)) // (shard[1] if shard else 1)

    return items, total


def _documents(items: Iterable[Any], text_column: str) -> Iterator[Document | ReadFailure]:
    seen: set[object] = set()  # one file under two names is read once
    for item in items:
        if isinstance(item, Path):
            yield from read([item], seen=seen, text_column=text_column)
        elif isinstance(item, (Document, ReadFailure)):
            yield item
        elif isinstance(item, str):
            yield Document(item)
        elif isinstance(item, Mapping):
            yield _from_mapping(item)
        else:
            yield ReadFailure(f"{item!r:.80}", "is no source; give a text, a Document, a mapping or a pathlib.Path")


def _from_mapping(item: Mapping[str, Any]) -> Document | ReadFailure:
    unknown = set(item) - {"id", "title", "text", "source", "metadata", "triplets"}
    if unknown or "text" not in item:
        what = f"unknown fields {sorted(map(str, unknown))}" if unknown else "no field 'text'"
        return ReadFailure(str(item.get("id", "")) or f"{dict(item)!r:.60}", f"{what}; a document has a text")
    return Document(**item)


def _part(
    documents: Iterator[Document | ReadFailure], shard: tuple[int, int] | None
) -> Iterator[Document | ReadFailure]:
    return documents if shard is None else _shard_of(documents, *shard)


def _shard_of(documents: Iterator[Document | ReadFailure], index: int, count: int) -> Iterator[Document | ReadFailure]:
    if not 1 <= index <= count:
        raise SettingsError(f"shard {index}/{count} does not exist; the first of {count} is 1/{count}")
    for item in documents:
        key = item.source if isinstance(item, ReadFailure) else _shard_key(item)
        if shard_of(key, count) == index - 1:
            yield item


def _shard_key(document: Document) -> str:
    """The id, or what it would derive from, so that equal documents meet in one shard."""
    return document.id or content_hash(document.source, document.title, str(document.text))


def _bar(total: Callable[[], int | None], progress: bool | None, what: str = "indexing") -> Any:
    """A bar on stderr with rate and time left; where nobody watches, a line every half minute if one is asked for."""
    watched = sys.stderr is not None and sys.stderr.isatty()
    disable = not watched if progress is None else not progress
    count = None if disable else total()
    pause = 0.1 if watched else 30.0
    return tqdm(total=count, desc=what, unit=" documents", disable=disable, leave=False, mininterval=pause)


def _record(row: Mapping[str, Any]) -> DocumentRecord:
    return DocumentRecord(
        id=row["doc_id"],
        title=row["title"],
        source=row["source"],
        passages=int(row["passages"]),
        relations=int(row["relations"]),
        indexed_at=int(row["indexed_at"]),
        complete=bool(row["hash"]),
        metadata=dict(row["metadata"] or {}),
    )
