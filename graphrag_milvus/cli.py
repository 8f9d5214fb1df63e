"""The command line: each command is a thin twin of a `GraphRAG` method.

Exit status: 0 done; 1 something was not done, said in the output; 2 wrong usage or settings.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from graphrag_milvus import demo as demo_story
from graphrag_milvus.builder.estimate import Estimate, Prices
from graphrag_milvus.errors import GraphRAGError, SettingsError, UsageError
from graphrag_milvus.evaluation import evaluate as run_evaluation
from graphrag_milvus.evaluation import plot as evaluation_plot
from graphrag_milvus.evaluation import table as evaluation_table
from graphrag_milvus.rag import METHODS, GraphRAG
from graphrag_milvus.retrieval.mutual import EntityView, PassageView, Shown, ShownEntity, ShownRelation
from graphrag_milvus.settings import Settings, load_settings
from graphrag_milvus.types import Answer, DocumentRecord, Retrieval, ScoredPassage

__all__ = ["app", "main"]

app = typer.Typer(
    name="graphrag-milvus",
    help="Graph RAG over Milvus: index documents, find the passages that answer a question over several of them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
Question = Annotated[str, typer.Argument(help="What to look for.")]
MethodName = Annotated[str | None, typer.Option("--method", help=f"auto, {', '.join(METHODS)}.")]
TopK = Annotated[int | None, typer.Option("--top-k", help="Passages at the most.")]
Filter = Annotated[str, typer.Option("--filter", help="""Milvus expression, as in 'metadata["year"] > 1990'.""")]


@app.callback()
def _settings(
    context: typer.Context,
    uri: Annotated[str | None, typer.Option(help="A file NAME.db, or http(s)://host:port of a server.")] = None,
    workspace: Annotated[str | None, typer.Option(help="An isolated set of collections.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
) -> None:
    """Settings that every command has; more are read from the environment (GRAPHRAG_...)."""
    context.obj = {"uri": uri, "workspace": workspace, "config": config}


@app.command()
def index(
    context: typer.Context,
    paths: Annotated[list[Path], typer.Argument(help="Files, folders or patterns of texts and tables.")],
    extractor: Annotated[
        str | None, typer.Option(help="auto, given, local, llm, or several joined by + (given+local).")
    ] = None,
    enrich: Annotated[
        str | None, typer.Option(help="title,summary,questions: what a chat model writes for search; none for nothing.")
    ] = None,
    shard: Annotated[str | None, typer.Option(help="I/N: only the I-th of N equal parts, from 1/N to N/N.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Requests to the chat model at once.")] = None,
    text_column: Annotated[str, typer.Option(help="The column of tables that holds the text.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Estimate passages, requests, tokens and money; spend and write nothing.")
    ] = False,
    price_in: Annotated[float | None, typer.Option(min=0, help="Of a million tokens of prompts.")] = None,
    price_out: Annotated[float | None, typer.Option(min=0, help="Of a million tokens of replies.")] = None,
    price_embedding: Annotated[float | None, typer.Option(min=0, help="Of a million tokens of embeddings.")] = None,
    progress: Annotated[
        bool | None, typer.Option(help="Show progress on stderr, also where it is no terminal.")
    ] = None,
    json_: Json = False,
) -> None:
    """Index documents; run it again to go on after an interruption, or to take up what changed."""
    with _rag(context, json_, workers=workers) as rag:
        options: dict[str, Any] = {
            "extractor": extractor,
            "enrich": enrich,
            "shard": _shard(shard),
            "text_column": text_column,
        }
        if dry_run:
            prices = _prices(rag.settings, price_in, price_out, price_embedding)
            _print_estimate(json_, rag.estimate(list(paths), prices=prices, progress=progress, **options))
            return
        report = rag.add(list(paths), progress=progress, **options)
        for warning in report.warnings[:20]:
            _note(f"warning: {warning}")
        for failure in report.failed:
            _note(f"failed: {failure['source']}: {failure['reason']}")
        _print(json_, dataclasses.asdict(report), _report_lines(dataclasses.asdict(report)))
        _exit(1 if report.failed or report.unenriched else 0)


@app.command()
def retrieve(
    context: typer.Context,
    question: Question,
    method: MethodName = None,
    top_k: TopK = None,
    filter: Filter = "",
    json_: Json = False,
) -> None:
    """Find the passages that answer a question, and the path that led to them."""
    with _rag(context, json_) as rag:
        found = rag.retrieve(question, method=method, k=top_k, filter=filter)
        _notes(found)
        _print(json_, _retrieval(found), [*_passage_lines(found.passages), *_path_lines(found)])
        _exit(0 if found.passages or found.trace.timings_ms else 1)


@app.command()
def ask(
    context: typer.Context,
    question: Question,
    method: MethodName = None,
    top_k: TopK = None,
    filter: Filter = "",
    stream: Annotated[bool, typer.Option("--stream", help="Print the answer as it is written.")] = False,
    json_: Json = False,
) -> None:
    """Answer a question with citations; without a chat model, by sentences of the passages."""
    with _rag(context, json_) as rag:
        if stream and not json_:
            answer = _streamed(rag.stream(question, method=method, k=top_k, filter=filter))
            lines = _source_lines(answer)
        else:
            answer = rag.ask(question, method=method, k=top_k, filter=filter)
            lines = [_wrapped(answer.text), *_source_lines(answer)]
        for note in answer.trace.notes:
            _note(f"note: {note}")
        _print(json_, _answer(answer), lines)
        _exit(0 if answer.passages else 1)


@app.command()
def show(
    context: typer.Context,
    what: Annotated[str, typer.Argument(metavar="PASSAGE_ID|ENTITY", help="The id of a passage, or a name.")],
    filter: Filter = "",
    limit: Annotated[int, typer.Option(help="Relations of one entity at the most.")] = 20,
    json_: Json = False,
) -> None:
    """Show a passage with its entities and relations, or an entity with its relations, passages and documents."""
    with _rag(context, json_) as rag:
        shown = rag.show(what, filter=filter, limit=limit)
        _print(json_, {**dataclasses.asdict(shown), "found": shown.found}, _shown_lines(shown))
        _exit(0 if shown.found else 1)


@app.command()
def documents(context: typer.Context, json_: Json = False) -> None:
    """List the documents of the workspace."""
    with _rag(context, json_) as rag:
        records = rag.documents()
        lines = [
            "\t".join((r.id, r.title, f"{r.passages} passages", f"{r.relations} relations", _state(r))) for r in records
        ]
        _print(json_, {"documents": [dataclasses.asdict(r) for r in records]}, lines)


@app.command()
def delete(
    context: typer.Context,
    doc_ids: Annotated[list[str], typer.Argument(help="Ids as `documents` lists them.")],
    json_: Json = False,
) -> None:
    """Delete documents with all that is theirs."""
    with _rag(context, json_) as rag:
        report = rag.delete(doc_ids)
        for doc_id in report.missing:
            _note(f"not there: {doc_id}")
        _print(json_, dataclasses.asdict(report), [f"deleted {len(report.deleted)} of {len(doc_ids)} documents"])
        _exit(1 if report.missing else 0)


@app.command()
def gc(context: typer.Context, json_: Json = False) -> None:
    """Delete entities that no relation holds any more. Not while something is being indexed."""
    with _rag(context, json_) as rag:
        removed = rag.gc()
        _print(json_, {"entities_removed": removed}, [f"removed {removed} entities"])


@app.command()
def stats(context: typer.Context, json_: Json = False) -> None:
    """Count what the workspace holds."""
    with _rag(context, json_) as rag:
        counts = dataclasses.asdict(rag.stats())
        _print(json_, counts, [f"{name}: {value}" for name, value in counts.items()])


@app.command()
def cache(
    context: typer.Context,
    clear: Annotated[bool, typer.Option("--clear", help="Delete all of it; what is indexed stays.")] = False,
    json_: Json = False,
) -> None:
    """Show what is remembered of chat model and embedder, so that nothing is paid for twice."""
    with _rag(context, json_) as rag:
        kept = rag.cache
        if kept is None:
            raise SettingsError("the cache is switched off; set GRAPHRAG_CACHE__ENABLED=true to use it")
        found = kept.clear() if clear else kept.stats()
        data = {**dataclasses.asdict(found), "cleared": clear}
        done = "deleted" if clear else "there are"
        _print(json_, data, [f"{done} {found.items:,} items, {found.bytes / 2**20:,.1f} MiB, in {found.folder}"])
        _exit(1 if kept.problem else 0)


@app.command()
def evaluate(
    context: typer.Context,
    dataset: Annotated[
        Path, typer.Argument(metavar="DATASET_DIR", help="Data set in HippoRAG's layout, or its questions file.")
    ],
    method: Annotated[
        str, typer.Option(help=f"all, or of auto, {', '.join(METHODS)} several joined by a comma.")
    ] = "all",
    extractor: Annotated[
        str | None, typer.Option(help="auto, given, local, llm, or several joined by + (given+local).")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Ask a sample of so many questions; the index is whole.")] = None,
    seed: Annotated[int, typer.Option(help="Of the sample and of the significance tests.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder that keeps index and rankings, to go on and compare.")
    ] = None,
    top_k: Annotated[int, typer.Option("--top-k", help="Passages asked for.")] = 10,
    answers: Annotated[bool, typer.Option("--answers", help="Let the chat model answer; measure EM and F1.")] = False,
    compare: Annotated[Path | None, typer.Option(help="The --out of another run on the same data.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Make rankings anew that --out has already.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw recall against latency into this PNG file.")] = None,
    json_: Json = False,
) -> None:
    """Measure retrieval methods on a data set with gold passages: recall, rank, time and cost."""
    with _rag(context, json_) as rag:
        if plot is not None:
            evaluation_plot.check(plot)
        evaluation = run_evaluation(
            dataset,
            method.split(","),
            extractor=extractor,
            limit=limit,
            seed=seed,
            out=out,
            top_k=top_k,
            answers=answers,
            compare=compare,
            fresh=fresh,
            settings=rag.settings,
        )
        for line in evaluation.undone:
            _note(f"not done: {line}")
        if plot is not None:
            evaluation_plot.plot(evaluation, plot)
        _print(json_, evaluation.as_dict(), evaluation_table.lines(evaluation))
        _exit(1 if evaluation.undone else 0)


@app.command()
def demo(
    context: typer.Context,
    question: Annotated[str, typer.Argument()] = demo_story.QUESTION,
    json_: Json = False,
) -> None:
    """Index the sample corpus and show graph retrieval beside naive retrieval. Needs no key and no server."""
    with tempfile.TemporaryDirectory(prefix="graphrag_milvus_") as folder:
        given = context.obj["uri"]
        with _rag(context, json_, uri=given or f"{folder}/demo.db", local=True) as rag:
            story = demo_story.tell(rag, question)
            _print(json_, story.as_dict(), story.lines(shutil.get_terminal_size((100, 24)).columns))


def main() -> None:
    """Entry point of the `graphrag-milvus` command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    app()


# Inside


@contextmanager
def _rag(
    context: typer.Context, json_: bool, *, workers: int | None = None, uri: str | None = None, local: bool = False
) -> Iterator[GraphRAG]:
    """The facade for one command; errors that are foreseen become one line and an exit status."""
    try:
        with GraphRAG(_load(context.obj, workers, uri, local)) as rag:
            yield rag
    except GraphRAGError as error:
        _note(f"error: {error}")
        if json_:
            print(json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}, ensure_ascii=False))
        raise typer.Exit(2 if isinstance(error, UsageError) else 1) from None


def _load(options: dict[str, Any], workers: int | None, uri: str | None, local: bool) -> Any:
    """Settings from everywhere, with what the command line says on top."""
    settings = load_settings(options["config"])
    if uri or options["uri"]:
        settings.milvus.uri = uri or options["uri"]
    if options["workspace"] is not None:
        settings.workspace = options["workspace"]
    if workers is not None:
        settings.llm.concurrency = workers
    if local:
        settings.embedding = type(settings.embedding)(provider="local")
        settings.llm = type(settings.llm)()
    return settings


def _shard(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    part, _, count = text.partition("/")
    if not (part.isdigit() and count.isdigit()):
        raise SettingsError(f"--shard {text!r} is not I/N; the first of four parts is 1/4")
    return int(part), int(count)


def _prices(settings: Settings, prompt: float | None, reply: float | None, embedding: float | None) -> Prices:
    """What the command line says, else the settings."""
    known = (settings.llm.price_in, settings.llm.price_out, settings.embedding.price)
    given = (prompt, reply, embedding)
    return Prices(*(old if new is None else new for new, old in zip(given, known, strict=True)))


def _print_estimate(json_: bool, found: Estimate) -> None:
    """What a run would do, under the names that its report has, and the status for what would fail."""
    data = {"dry_run": True, **dataclasses.asdict(found), "tokens": found.tokens}
    for note in found.notes[:20]:
        _note(f"note: {note}")
    for failure in found.failed:
        _note(f"would fail: {failure['source']}: {failure['reason']}")
    counts = ("documents", "added", "updated", "unchanged", "passages", "llm_calls", "prompt_tokens")
    names = (*counts, "completion_tokens", "embedding_tokens")
    lines = [f"{name.replace('_', ' ')}: {data[name]:,}" for name in names]
    cost = "unknown; give --price-in and --price-out" if found.cost is None else f"{found.cost:,.2f}"
    _print(json_, data, ["nothing was done; a run would do about this:", *lines, f"cost: {cost}"])
    _exit(1 if found.failed else 0)


def _print(json_: bool, data: dict[str, Any], lines: Sequence[str]) -> None:
    if json_:
        print(json.dumps(data, ensure_ascii=False))
    else:
        print("\n".join(lines))


def _note(text: str) -> None:
    print(text, file=sys.stderr)


def _notes(found: Retrieval) -> None:
    for note in found.trace.notes:
        _note(f"note: {note}")


def _exit(status: int) -> None:
    if status:
        raise typer.Exit(status)


def _state(record: DocumentRecord) -> str:
    return "complete" if record.complete else "incomplete"


def _retrieval(found: Retrieval) -> dict[str, Any]:
    return dataclasses.asdict(found)


def _answer(answer: Answer) -> dict[str, Any]:
    data = dataclasses.asdict(answer)
    return {"answer": data.pop("text"), **data}


def _streamed(pieces: Iterator[str | Answer]) -> Answer:
    answer: Answer | None = None
    for piece in pieces:
        if isinstance(piece, Answer):
            answer = piece
        else:
            print(piece, end="", flush=True)
    print()
    assert answer is not None  # the stream ends with it
    return answer


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(" ".join(text.split()), 100, initial_indent=indent, subsequent_indent=indent)


def _report_lines(report: dict[str, Any]) -> list[str]:
    counts = ("documents", "added", "updated", "unchanged", "passages", "relations", "entities")
    enriched = ("enriched", "unenriched") if report["enriched"] or report["unenriched"] else ()
    names = (*counts, *enriched, "llm_calls", "llm_cached", "tokens")
    lines = [f"{name.replace('_', ' ')}: {report[name]}" for name in names]
    return [*lines, f"failed: {len(report['failed'])}", f"seconds: {report['seconds']}"]


def _passage_lines(passages: Sequence[ScoredPassage]) -> list[str]:
    lines = []
    for rank, passage in enumerate(passages, start=1):
        lines.append(f"[{rank}] {passage.title or passage.doc_id}  (score {passage.score:.3f}, id {passage.id})")
        lines.append(_wrapped(passage.text, "    "))
    return lines or ["no passage found"]


def _shown_lines(shown: Shown) -> list[str]:
    if shown.passage is not None:
        return _passage_view_lines(shown.passage)
    if not shown.found:
        close = f"; close to it: {', '.join(shown.close)}" if shown.close else ""
        return [f"no passage and no entity {shown.asked!r}{close}"]
    return [line for view in shown.entities for line in _entity_view_lines(view)]


def _passage_view_lines(view: PassageView) -> list[str]:
    one = view.passage
    head = f"passage {one.id}: {one.title or one.doc_id}  (document {one.doc_id}, place {one.position})"
    entities = [f"  {_entity_line(entity)}" for entity in view.entities]
    return [
        head,
        _wrapped(one.text, "    "),
        f"entities: {len(view.entities)}",
        *entities,
        f"relations: {len(view.relations)}",
        *map(_relation_line, view.relations),
        *(_wrapped(f"{kind}: {text}", "  ") for kind, text in view.enrichments),
    ]


def _entity_view_lines(view: EntityView) -> list[str]:
    more = view.entity.relations - len(view.relations)
    rest = [f"  and {more:,} more relations; --limit shows more of them"] if more > 0 else []
    passages = [f"  {p.title or p.doc_id}  (id {p.id}, document {p.doc_id}, place {p.position})" for p in view.passages]
    relations = [f"{_relation_line(r)}  (passage {r.passage_id})" for r in view.relations]
    return [
        f"entity {_entity_line(view.entity)}",
        "relations:",
        *relations,
        *rest,
        "passages of these:",
        *passages,
        f"documents of these: {', '.join(view.documents)}",
        "",
    ]


def _entity_line(entity: ShownEntity) -> str:
    kind = f" [{entity.type}]" if entity.type else ""
    return f"{entity.name}{kind}  ({entity.relations} relations in {entity.passages} passages, id {entity.id})"


def _relation_line(relation: ShownRelation) -> str:
    return _wrapped(f"{relation.text} <{' | '.join(relation.entities)}>", "  ")


def _path_lines(found: Retrieval) -> list[str]:
    return ["", "Paths:", *(_wrapped(line, "  ") for line in found.trace.path)] if found.trace.path else []


def _source_lines(answer: Answer) -> list[str]:
    places = {p.id: n for n, p in enumerate(answer.passages, start=1)}
    titles = {p.id: p.title or p.doc_id for p in answer.passages}
    lines = [f"  [{places[c]}] {titles[c]} (id {c})" for c in answer.citations]
    kind = " (no model: the answer is made of the passages' own sentences)" if answer.extractive else ""
    return ["", f"Sources{kind}:", *lines, f"Confidence: {answer.confidence:.2f}"] if lines else []
