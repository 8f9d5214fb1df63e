"""Measures retrieval methods on a data set: index, ask every question, keep every ranking, measure, compare."""

from __future__ import annotations

import re
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from tqdm.auto import tqdm

from graphrag_milvus.builder.extractors import make_extractor
from graphrag_milvus.errors import InputError, SettingsError
from graphrag_milvus.evaluation import figures, metrics
from graphrag_milvus.evaluation.answers import PASSAGES, SHORT_ANSWER_VERSION, Answers, answer_quality
from graphrag_milvus.evaluation.candidates import Candidates, TokenCounter
from graphrag_milvus.evaluation.datasets import Dataset, Question, read_dataset
from graphrag_milvus.evaluation.rankings import Folder, Ranking
from graphrag_milvus.layout import WINDOW
from graphrag_milvus.llm import LLM
from graphrag_milvus.rag import ALL_METHODS, METHODS, GraphRAG
from graphrag_milvus.settings import Settings, load_settings
from graphrag_milvus.types import Retrieval, content_hash

__all__ = ["Evaluation", "evaluate", "method_names"]

PASSAGE_SIZE = 16_000
"""Characters; the passages of a data set stay whole, as their gold marks mean them."""
_CACHED_VECTORS = 16
"""The embedder keeps those of one question and not those of the data set, or only the first method paid for them."""
_MIXED = "of several versions"


@dataclass
class Evaluation:
    """What came out.

    Attributes:
        dataset: the name of the data set.
        questions: how many were asked.
        passages: how many there are.
        top_k: passages asked for.
        index: counts, extractor and seconds.
        results: measures by method, fractions from 0 to 1 and milliseconds.
        significance: each pair of methods, compared by recall at `headline`.
        compare: the same methods in another folder, where one was named.
        prompt_tokens_by: how the tokens of prompts are counted.
        notes: what a reader of the figures has to know.
        undone: what was to be done and was not.
    """

    dataset: str
    questions: int
    passages: int
    top_k: int
    index: dict[str, Any]
    results: dict[str, dict[str, Any]]
    significance: list[dict[str, Any]]
    compare: dict[str, Any] | None = None
    prompt_tokens_by: str = ""
    notes: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)

    @property
    def headline(self) -> int:
        """The rank at which methods are compared: 5, or all passages asked for where these are fewer."""
        return metrics.headline(self.top_k)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self)


def evaluate(
    dataset: str | Path,
    methods: Sequence[str] = ("all",),
    *,
    extractor: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    top_k: int = 10,
    answers: bool = False,
    compare: str | Path | None = None,
    fresh: bool = False,
    settings: Settings | None = None,
    embeddings: Embeddings | None = None,
    llm: BaseChatModel | None = None,
    progress: bool | None = None,
) -> Evaluation:
    """Index the passages of a data set, ask its questions by each method, and measure what is found.

    Interrupted, it goes on from where it was when it is called again with the same `out`.

    Args:
        dataset: a folder in HippoRAG's layout, or its questions file.
        methods: names, or `all` for every method but `auto`.
        extractor: in place of the setting.
        limit: ask a sample of so many questions only; the index is always whole.
        seed: of the sample and of the significance tests.
        out: a folder that keeps the index and every ranking; a temporary one where it is not given. The embedded
            engine's file stands in it; on a server the workspace is named after the data.
        top_k: passages asked for.
        answers: let the chat model answer from the first passages, and measure EM and F1.
        compare: the `out` of another run on the same data, to compare with.
        fresh: make rankings anew that are there already.
        settings: read from the environment where it is not given.
        embeddings: in place of those that the settings name.
        llm: in place of the chat model that the settings name.
        progress: show progress bars; None shows them where somebody can see them.

    Raises:
        InputError: the data set cannot be used, or the folder is of other data or settings.
        SettingsError: a method is unknown, or answers are asked for and there is no chat model.
        MissingDependencyError: the extra `evaluation` is not installed.
    """
    with ExitStack() as stack:
        folder = Path(out) if out else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="graphrag_milvus_")))
        run = _Run(
            data=read_dataset(dataset),
            methods=method_names(methods),
            folder=Folder(folder),
            settings=_settings(settings or load_settings(), folder),
            extractor=extractor,
            limit=limit,
            seed=seed,
            top_k=top_k,
            kept=out is not None,
            progress=progress,
            embeddings=embeddings,
            chat_model=llm,
        )
        run.check(answers)
        other = None if compare is None else _Other(Folder(Path(compare)))
        if other is not None:
            other.check(run)
        stack.enter_context(run.folder.locked())
        evaluation = run.run(answers=answers, fresh=fresh)
        if other is not None:
            other.compare(run, evaluation)
        run.folder.write_report(evaluation.as_dict())
        return evaluation


def method_names(names: Sequence[str]) -> list[str]:
    """The methods that are meant, each once; `all` is every one but `auto`.

    Raises:
        SettingsError: a name is unknown, or there is none.
    """
    stripped = [name.strip() for name in names if name.strip()]
    unknown = [name for name in stripped if name not in ("all", "auto", *ALL_METHODS)]
    if unknown or not stripped:
        what = f"there is no method {unknown[0]!r}" if unknown else "no method is named"
        raise SettingsError(f"{what}; known are all, auto, {', '.join(METHODS)}")
    return list(dict.fromkeys(one for name in stripped for one in (METHODS if name == "all" else [name])))


def _settings(settings: Settings, folder: Path) -> Settings:
    """The settings with a place of their own for the index, and with whole passages."""
    own = settings.model_copy(deep=True)
    if own.milvus.embedded:
        own.milvus.uri = str(folder / "index.db")
    own.index.passage_size = PASSAGE_SIZE
    return own


@dataclass
class _Run:
    """One evaluation on its way."""

    data: Dataset
    methods: list[str]
    folder: Folder
    settings: Settings
    extractor: str | None
    limit: int | None
    seed: int
    top_k: int
    kept: bool
    progress: bool | None
    embeddings: Embeddings | None
    chat_model: BaseChatModel | None
    notes: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)

    # What it is made of

    @cached_property
    def questions(self) -> list[Question]:
        return self.data.sample(self.limit, self.seed)

    @cached_property
    def record(self) -> dict[str, Any]:
        """What `run.json` says; read while the folder is locked."""
        return self.folder.read()

    @cached_property
    def identity(self) -> dict[str, str]:
        """What an index is of; another one needs another folder."""
        index = self.settings.index
        made = make_extractor(self.extractor or index.extractor, llm=self.rag.llm, spacy_model=index.spacy_model)
        return {
            "dataset": self.data.name,
            "passages": self.data.digest,
            "extractor": made.name,
            "recipe": made.recipe,
            "embedding": self.rag.embedder.name,
            "engine": "embedded" if self.settings.milvus.embedded else self.settings.milvus.uri,
        }

    @cached_property
    def rag(self) -> GraphRAG:
        return GraphRAG(self.settings, llm=self.chat_model, embeddings=self.embeddings)

    @cached_property
    def counter(self) -> TokenCounter:
        return TokenCounter()

    def conditions(self) -> dict[str, Any]:
        """What rankings depend on beside the index."""
        retrieval = self.settings.retrieval.model_dump(mode="json", exclude={"method", "top_k"})
        return {"top_k": self.top_k, "model": _model_name(self.rag.llm), **retrieval}

    # Before anything is done

    def check(self, answers: bool) -> None:
        """Raise for what cannot be meant, before the index takes its time."""
        metrics.ir_measures()
        questions, identity = self.questions, self.identity
        if not 1 <= self.top_k <= WINDOW:
            raise InputError(f"top-k is {self.top_k}; it must be from 1 to {WINDOW:,} (Milvus's window)")
        if answers and self.rag.llm is None:
            raise SettingsError("answers need a chat model; set GRAPHRAG_LLM__MODEL, or leave them out")
        if answers and not any(q.answers for q in questions):
            raise InputError(f"the questions of {self.data.name!r} come without answers; leave answers out")
        self._check_folder(identity)
        if self.limit is not None and self.limit > len(self.data.questions):
            self.notes.append(f"limit is {self.limit:,}; the data set has {len(self.data.questions):,} questions")

    def _check_folder(self, identity: Mapping[str, str]) -> None:
        stored = self.folder.read().get("identity")
        if stored is None or stored == identity:
            return
        different = [name for name in identity if stored.get(name) != identity[name]]
        was = ", ".join(f"{name} {stored.get(name)!r} in place of {identity[name]!r}" for name in different)
        raise InputError(f"{str(self.folder.path)!r} is of another evaluation ({was}); name another folder")

    # The work

    def run(self, *, answers: bool, fresh: bool) -> Evaluation:
        """Do what is not done yet, and measure."""
        if fresh:
            self._forget()
        self._check_conditions(answers)
        index = self._ask()
        rankings = {method: self._rankings(method) for method in self.methods}
        qualities = {m: metrics.quality(self.questions, rankings[m], self.top_k) for m in self.methods}
        if answers:
            for method in self.methods:
                qualities[method] |= self._answered(method, rankings[method])
        return Evaluation(
            dataset=self.data.name,
            questions=len(self.questions),
            passages=len(self.data.documents),
            top_k=self.top_k,
            index=index,
            results={
                m: figures.result(self.questions, rankings[m], qualities[m], self.measure, self.seed)
                for m in self.methods
            },
            significance=figures.significance(
                {m: qualities[m][self.measure] for m in self.methods}, self.measure, self.seed
            ),
            prompt_tokens_by=self.counter.name,
            notes=[*self.data.notes, *self.notes],
            undone=self.undone,
        )

    @property
    def measure(self) -> str:
        """The measure by which methods are compared."""
        return f"recall@{metrics.headline(self.top_k)}"

    def _forget(self) -> None:
        for method in self.methods:
            self.folder.forget(method)
            self.record.get("methods", {}).pop(method, None)

    def _check_conditions(self, answers: bool) -> None:
        """Refuse to mix rankings that were made in different ways."""
        made = self.record.get("methods", {})
        for method in self.methods:
            kept = made.get(method, {})
            if self.folder.rankings(method).read():
                self._check_same(method, "rankings", kept.get("conditions"), self.conditions())
            if answers and self.folder.answers(method).read():
                self._check_same(method, "answers", kept.get("answers"), self._answer_conditions())

    def _check_same(self, method: str, what: str, stored: Mapping[str, Any] | None, now: Mapping[str, Any]) -> None:
        if stored == now:
            return
        then = stored or {}
        different = sorted(name for name in {**then, **now} if then.get(name) != now.get(name))
        was = ", ".join(f"{name} was {then.get(name)!r} and is {now.get(name)!r}" for name in different)
        how = f"were made with other settings ({was})" if stored else "were made by nothing that run.json knows of"
        raise InputError(
            f"the {what} of {method!r} in {str(self.folder.path)!r} {how}; "
            f"make them anew (--fresh), or name another folder"
        )

    def _ask(self) -> dict[str, Any]:
        """Index, and ask what was not asked yet; what the index holds."""
        waiting = {method: self._waiting(method) for method in self.methods}
        if "index" in self.record and not any(waiting.values()):
            return {**self.record["index"], "reused": True}
        with self._workspace():
            index = self._index()
            for method, questions in waiting.items():
                if questions:
                    self._rank(method, questions)
        return index

    @contextmanager
    def _workspace(self) -> Iterator[None]:
        """Open the workspace; on a server, one that nothing keeps is dropped at the end."""
        slug = re.sub(r"\W+", "_", self.data.name)[:40]
        mark = content_hash(*self.identity.values())[:10] if self.kept else uuid.uuid4().hex[:10]
        self.settings.workspace = f"evaluate_{slug}_{mark}"
        with self.rag:
            try:
                yield
            finally:
                if not self.kept and not self.settings.milvus.embedded:
                    self.rag.store.drop()

    def _index(self) -> dict[str, Any]:
        """Index what is not indexed; the counts."""
        stored = self.record.get("index")
        if stored is not None and self.rag.store.exists() and asdict(self.rag.stats()) == stored["stats"]:
            return {**stored, "reused": True}
        self._keep()
        report = self.rag.add(self.data.documents, extractor=self.extractor, progress=self.progress)
        counts = self.rag.stats()
        index = {
            "extractor": self.identity["extractor"],
            "embedding": self.identity["embedding"],
            "passages": counts.passages,
            "relations": counts.relations,
            "entities": counts.entities,
            "failed": report.failed[:20],
            "warnings": len(report.warnings),
            "seconds": report.seconds,
            "llm_calls": report.llm_calls,
            "tokens": report.tokens,
            "stats": asdict(counts),
        }
        if report.failed:
            first = report.failed[0]
            self.undone.append(
                f"{len(report.failed):,} passages are not indexed, the first {first['source']}: {first['reason']}"
            )
        else:
            self._keep(index=index)
        return {**index, "reused": False}

    def _keep(self, **more: Any) -> None:
        self.record.update({"identity": self.identity, **more})
        self.folder.write(self.record)

    # Rankings

    def stored(self, method: str, folder: Folder | None = None) -> dict[str, Ranking]:
        """The rankings that are there of the questions as they are asked today; those of another run in `folder`."""
        rows = (folder or self.folder).rankings(method).read()
        return {q.id: rows[q.id] for q in self.questions if q.id in rows and rows[q.id].question == q.text}

    def _waiting(self, method: str) -> list[Question]:
        stored = self.stored(method)
        if stored:
            self._tell_age(method, len(stored))
        return [q for q in self.questions if q.id not in stored]

    def _tell_age(self, method: str, count: int) -> None:
        made = self.record.get("methods", {}).get(method, {})
        older = made.get("code") != _code_digest()
        by = ", by other code than this" if older else ""
        self.notes.append(f"{count:,} rankings of {method} were there already{by}; --fresh makes them anew")

    def _rank(self, method: str, questions: Sequence[Question]) -> None:
        self._tell_how(method)
        self.rag.embedder.cached = _CACHED_VECTORS
        self.rag.retrieve(self.data.questions[-1].text, method=method, k=self.top_k)  # reads models and graph
        disable = None if self.progress is None else not self.progress
        with self.folder.rankings(method).appending() as file:
            for question in tqdm(questions, desc=method, unit=" questions", disable=disable, leave=False):
                file.write(self._ranked(method, question))

    def _tell_how(self, method: str) -> None:
        """Write down how rankings are made before there is one."""
        made = self.record.setdefault("methods", {}).setdefault(method, {})
        code = _code_digest()
        mixed = made.get("code", code) != code and self.stored(method)
        made.update(conditions=self.conditions(), code=_MIXED if mixed else code)
        self._keep()

    def _ranked(self, method: str, question: Question) -> Ranking:
        started = time.perf_counter()
        found = self.rag.retrieve(question.text, method=method, k=self.top_k)
        ms = (time.perf_counter() - started) * 1000
        scores: dict[str, float] = {}
        for passage in found.passages:
            scores.setdefault(passage.doc_id, passage.score)
        trace = found.trace
        return Ranking(
            id=question.id,
            question=question.text,
            method=found.method,
            documents=list(scores),
            scores=list(scores.values()),
            ms=round(ms, 3),
            timings_ms=trace.timings_ms,
            round_trips=trace.round_trips,
            calls=trace.usage.calls,
            tokens=trace.usage.tokens,
            notes=trace.notes,
            **self._candidates_of(found),
        )

    @cached_property
    def _candidates(self) -> Candidates:
        retrieval = self.settings.retrieval
        return Candidates(self.rag.store, self.counter, retrieval.selected, retrieval.prompt_tokens)

    def _candidates_of(self, found: Retrieval) -> dict[str, Any]:
        if not found.trace.candidate_ids:
            return {}
        texts = self._candidates.texts(found)
        return {
            "candidates": len(texts) or len(found.trace.candidate_ids),
            "reached": self._candidates.reached(found),
            "prompt_tokens": self._candidates.prompt_tokens(found.question, texts) if texts else None,
        }

    def _rankings(self, method: str) -> list[Ranking]:
        stored = self.stored(method)
        return [stored[q.id] for q in self.questions]

    # Answers

    def _answer_conditions(self) -> dict[str, Any]:
        return {"model": _model_name(self.rag.llm), "prompt": SHORT_ANSWER_VERSION, "passages": PASSAGES}

    def _answered(self, method: str, rankings: Sequence[Ranking]) -> dict[str, metrics.Floats]:
        llm = self.rag.llm
        assert llm is not None  # checked at the start
        self.record["methods"][method]["answers"] = self._answer_conditions()
        self._keep()
        asked = [q for q in self.questions if q.answers]
        by_id = {r.id: r for r in rankings}
        said, failures = Answers(llm, self.data, self.progress).complete(self.folder.answers(method), asked, by_id)
        if failures:
            self.undone.append(f"{method}: {len(failures):,} questions were not answered, the first {failures[0]}")
        return answer_quality(self.questions, said)


@dataclass(frozen=True)
class _Other:
    """Another run on the same data, to compare with."""

    folder: Folder

    def check(self, run: _Run) -> None:
        """Raise where it is no run, or one on other data."""
        identity = self.folder.read().get("identity")
        where = repr(str(self.folder.path))
        if identity is None:
            raise InputError(f"{where} has no run.json of an evaluation; name the --out of another run")
        if identity.get("passages") != run.data.digest:
            raise InputError(
                f"{where} is of other data ({identity.get('dataset')!r}) than {run.data.name!r}; "
                f"only runs on the same passages compare"
            )

    def compare(self, run: _Run, evaluation: Evaluation) -> None:
        """For each method that both have, this run beside the other on the questions that both asked."""
        found = {method: self._method(run, method) for method in run.methods}
        missing = [method for method, one in found.items() if one is None]
        if missing:
            evaluation.notes.append(
                f"{str(self.folder.path)!r} has no rankings of {', '.join(missing)} to compare with"
            )
        methods = {method: one for method, one in found.items() if one is not None}
        evaluation.compare = {"folder": str(self.folder.path), "methods": methods}

    def _method(self, run: _Run, method: str) -> dict[str, Any] | None:
        here, there = run.stored(method), run.stored(method, self.folder)
        both = [q for q in run.questions if q.id in here and q.id in there]
        if not both:
            return None
        ours, theirs = ([rows[q.id] for q in both] for rows in (here, there))
        return figures.comparison(both, ours, theirs, run.top_k, run.seed)


def _model_name(llm: LLM | None) -> str | None:
    if llm is None:
        return None
    model = llm.model
    return str(getattr(model, "model_name", None) or getattr(model, "model", None) or type(model).__name__)


def _code_files() -> list[Path]:
    """The modules that decide a ranking."""
    package = Path(__file__).parents[1]
    folders = [file for folder in ("graph", "retrieval") for file in package.glob(f"{folder}/**/*.py")]
    return sorted([*folders, *(package / f"{name}.py" for name in ("hits", "names", "rag", "sentences", "store"))])


def _code_digest() -> str:
    """Another text after any change of what ranks, so that older rankings are not taken for those of today."""
    return content_hash(*(file.read_text("utf-8") for file in _code_files()))
