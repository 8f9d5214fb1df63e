"""Measures this package on the benchmark's data; `benchmark.py` runs it, in a process of its own."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from benchmark_data import DIMENSION, PASSAGE_SIZE, Dataset, PrecomputedEmbeddings, gold_ids, memory_mb, passages_of

from graphrag_milvus import GraphRAG
from graphrag_milvus.embeddings import LocalEmbeddings
from graphrag_milvus.prompts import select_relations
from graphrag_milvus.rag import METHODS
from graphrag_milvus.settings import Settings, load_settings
from graphrag_milvus.testing import HashingEmbeddings
from graphrag_milvus.types import Retrieval

CUTOFFS = (2, 5, 10)
CHARS_PER_TOKEN = 4  # as for the peer
METHOD = "subgraph"
WITH_EMBEDDING = 200  # questions that are asked again with the real embedder
EACH_METHOD = 200  # questions that every method is asked
Result = TypeVar("Result")


def settings_for(folder: str, **embedding: Any) -> Settings:
    """The package's defaults, but for whole passages and triples as they were given."""
    return load_settings(
        milvus={"uri": str(Path(folder) / "benchmark.db")},
        index={"extractor": "given", "passage_size": PASSAGE_SIZE},
        embedding=embedding,
        cache={"enabled": False},  # vectors are looked up in a file already
    )


def timed(work: Callable[[], Result], standin: Callable[[], float] = lambda: 0.0) -> tuple[float, Result]:
    """Seconds of `work` without what the stand-in spent meanwhile, and its result."""
    started, before = time.perf_counter(), standin()
    result = work()
    return time.perf_counter() - started - (standin() - before), result


def ask(
    rag: GraphRAG, questions: list[str], standin: Callable[[], float] = lambda: 0.0, method: str = METHOD
) -> tuple[list[Retrieval], Any]:
    """What was found for each question, and milliseconds."""
    retrieve = partial(rag.retrieve, method=method, k=max(CUTOFFS))
    answers = [timed(partial(retrieve, question), standin) for question in questions]
    return [found for _, found in answers], 1000 * np.array([seconds for seconds, _ in answers])


def judge(rag: GraphRAG, dataset: Dataset, questions: list[dict[str, Any]], found: list[Retrieval]) -> dict[str, float]:
    """Means over the questions: what the candidates reach, what was ranked high, how long the prompt would be."""
    passages = passages_of(dataset.documents())
    relations = {int(row["id"]): row for row in rag.store.iterate("relations", ["text", "passage_id"])}
    values: dict[str, list[float]] = defaultdict(list)
    for gold, one in zip(gold_ids(questions, dataset.rows()), found, strict=True):
        rows = [relations[int(i)] for i in one.trace.candidate_ids]
        reached = {passages[int(row["passage_id"])].doc_id for row in rows}
        texts = list(dict.fromkeys(str(row["text"]) for row in rows))
        values["candidate_ceiling"].append(len(gold & reached) / len(gold))
        values["candidates_mean"].append(len(texts))
        values["prompt_tokens_mean"].append(prompt_tokens(one.question, texts, rag.settings.retrieval.selected))
        values["round_trips"].append(one.trace.round_trips)
        for k in CUTOFFS:
            values[f"recall@{k}"].append(len(gold & {p.doc_id for p in one.passages[:k]}) / len(gold))
    return {name: float(np.mean(numbers)) for name, numbers in values.items()}


def prompt_tokens(question: str, texts: list[str], limit: int) -> float:
    """Tokens, at four characters each, of the request that a chat model would get."""
    lines = [f"[{n}] {text}" for n, text in enumerate(texts, start=1)]
    return sum(len(message) for _, message in select_relations(question, lines, limit)) / CHARS_PER_TOKEN


def stages(found: list[Retrieval]) -> dict[str, float]:
    """Mean milliseconds by stage."""
    names = found[0].trace.timings_ms
    return {name: float(np.mean([one.trace.timings_ms[name] for one in found])) for name in names}


def by_method(
    rag: GraphRAG, dataset: Dataset, questions: list[dict[str, Any]], standin: Callable[[], float]
) -> dict[str, Any]:
    """For each method, on the first questions: recall, milliseconds, and milliseconds by stage."""
    some, report = questions[:EACH_METHOD], {}
    gold = gold_ids(some, dataset.rows())
    for name in METHODS:
        found, ms = ask(rag, [q["question"] for q in some], standin, name)
        hits = [len(g & {p.doc_id for p in one.passages[:5]}) / len(g) for g, one in zip(gold, found, strict=True)]
        p50, p95 = np.percentile(ms, [50, 95]).tolist()
        report[name] = {"recall@5": float(np.mean(hits)), "p50_ms": p50, "p95_ms": p95, "stages_ms": stages(found)}
    return report


def with_embedding(folder: str, questions: list[str]) -> float:
    """p50 in milliseconds where the local model embeds each question and the names in it."""
    with GraphRAG(settings_for(folder, provider="local")) as rag:
        rag.retrieve("Who is first?", method=METHOD)  # loads the model and the graph
        _, ms = ask(rag, questions[:WITH_EMBEDDING])
    return float(np.median(ms))


def run(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    model = LocalEmbeddings() if options.embed else HashingEmbeddings(DIMENSION)
    dataset, embeddings = Dataset(options.data), PrecomputedEmbeddings(options.vectors, options.embedder, model)
    documents, questions = dataset.documents(), dataset.questions()[: options.limit]
    asked, before_mb = [q["question"] for q in questions], memory_mb()[0]
    with GraphRAG(settings_for(folder), embeddings=embeddings) as rag:
        index_seconds, indexed = timed(partial(rag.add, documents, progress=False), lambda: embeddings.seconds)
        # The first question reads the graph, which the peer keeps from indexing.
        graph_seconds, _ = timed(partial(rag.retrieve, asked[0], method=METHOD), lambda: embeddings.seconds)
        found, ms = ask(rag, asked, lambda: embeddings.seconds)
        own_mb, engine_mb = memory_mb()
        report: dict[str, Any] = judge(rag, dataset, questions, found)
        report["methods"] = by_method(rag, dataset, questions, lambda: embeddings.seconds)
    p50, p95 = np.percentile(ms, [50, 95]).tolist()
    report |= {"questions": len(questions), "p50_ms": p50, "p95_ms": p95, "stages_ms": stages(found)}
    report |= {"index_seconds": index_seconds, "graph_seconds": graph_seconds, "failed": len(indexed.failed)}
    report |= {"passages": indexed.passages, "relations": indexed.relations, "entities": indexed.entities}
    report |= {"peak_mb": own_mb + engine_mb, "engine_mb": engine_mb, "before_mb": before_mb}
    report |= {"engine": f"milvus-lite {version('milvus-lite')}", "pymilvus": version("pymilvus")}
    return report | {"p50_with_embedding_ms": with_embedding(folder, asked) if options.embed else None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="data set folder in HippoRAG's layout")
    parser.add_argument("--vectors", type=Path, required=True, help="npz of precomputed vectors")
    parser.add_argument("--embedder", required=True, help="name of the model that made the vectors")
    parser.add_argument("--embed", action="store_true", help="ask again with the local embedder, which made them")
    parser.add_argument("--limit", type=int, help="ask the first N questions only; the index is always whole")
    parser.add_argument("--out", type=Path, required=True, help="write the JSON here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options.out.write_text(json.dumps(run(options, folder)), "utf-8")


if __name__ == "__main__":
    main()
