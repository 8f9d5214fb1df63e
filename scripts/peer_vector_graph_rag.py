"""Measures vector-graph-rag, the peer, on the benchmark's data. Runs in the peer's own environment.

    python -m venv peer && peer/bin/pip install vector-graph-rag==0.4.0
    peer/bin/python peer_vector_graph_rag.py --data DIR --entities E.json --list-texts TEXTS.json
    (embed those texts into VECTORS.npz)
    peer/bin/python peer_vector_graph_rag.py --data DIR --entities E.json --vectors VECTORS.npz --out OUT.json

The peer keeps its defaults and its own code path: builder, inserts, `retrieve`. Three of its parts that need a model
are stood in for, and the time spent in the stand-ins is taken off:

* embeddings: a dictionary from text to vector; a text without a vector is an error,
* the names in a question: a list per question, the same one for both systems,
* the relation reranker: candidates by cosine of relation and question, of which it passes on `--selected`.

VECTORS.npz holds `texts`, the UTF-8 bytes (uint8) of a JSON list of n strings, and `vectors`, float32 [n, d] of unit
length. The peer asks its model for 5 relations, so 5 is the default; `--selected 0` passes all on, in order.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from vector_graph_rag import VectorGraphRAG
from vector_graph_rag.config import Settings
from vector_graph_rag.llm.extractor import processing_phrases
from vector_graph_rag.storage import embeddings

CUTOFFS = (2, 5, 10)
CHARS_PER_TOKEN = 4  # kind to the peer: the identifiers in its prompt take more tokens than that
SETTINGS = (  # reported, so that a reader sees what was measured
    "entity_top_k relation_top_k entity_similarity_threshold relation_similarity_threshold expansion_degree"
    " relation_number_threshold batch_size milvus_index_type milvus_consistency_level"
).split()
DIMENSION, SKEW = 384, 0.7  # of synthetic data: the entity of rank r is drawn with weight r ** -SKEW


class Stopwatch:
    """Seconds and calls per label."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)

    @contextmanager
    def __call__(self, label: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[label] += time.perf_counter() - start
        self.calls[label] += 1


class Vectors:
    """Stands in for the peer's embedding provider: a dictionary from text to unit vector."""

    def __init__(self, path: Path, watch: Stopwatch) -> None:
        stored = np.load(path)
        self.matrix: np.ndarray = stored["vectors"].astype(np.float32, copy=False)
        self.rows = {text: row for row, text in enumerate(json.loads(stored["texts"].tobytes()))}
        self.dimension, self.watch = int(self.matrix.shape[1]), watch

    def encode(self, texts: str | list[str], **_options: Any) -> np.ndarray:
        with self.watch("embedding"):
            return self.of([texts] if isinstance(texts, str) else texts)

    def of(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors, [n, d]; KeyError where a text was not embedded beforehand."""
        missing = next((text for text in texts if text not in self.rows), None)
        if missing is not None:
            raise KeyError(f"no vector for {missing!r}; embed what --list-texts writes")
        return self.matrix[[self.rows[text] for text in texts]]


class CosineReranker:
    """Stands in for the peer's model; leaves in `candidates` and `prompt_chars` what the model would have seen."""

    candidates: Sequence[str] = ()
    prompt_chars = 0

    def __init__(self, peer: Any, vectors: Vectors, selected: int, watch: Stopwatch) -> None:
        self.peer, self.vectors, self.selected, self.watch = peer, vectors, selected, watch

    def rerank(self, query: str, relation_ids: list[str], relation_texts: list[str]) -> tuple[list[str], list[str]]:
        with self.watch("reranker"):
            self.candidates = relation_ids
            lines = self.peer._format_relations(relation_ids, relation_texts)
            self.prompt_chars = len(self.peer._build_prompt(query, lines))
            scores = self.vectors.of(relation_texts) @ self.vectors.of([query])[0]
            best = np.argsort(-scores, kind="stable")[: self.selected or None]
            return [relation_ids[row] for row in best], [relation_texts[row] for row in best]


def spelled(names: list[str]) -> list[str]:
    return [processing_phrases(name) for name in names]


def read_dataset(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Documents for the peer (id, title, passage, well-formed triplets) and questions, in HippoRAG's layout."""
    source = next(folder.glob("openie_*.json"))
    documents = [
        {"id": str(n), "title": d["title"], "passage": d["passage"], "triplets": well_formed(d["extracted_triples"])}
        for n, d in enumerate(json.loads(source.read_text("utf-8"))["docs"])
    ]
    return documents, json.loads((folder / source.name.removeprefix("openie_")).read_text("utf-8"))


def well_formed(triples: Any) -> list[list[str]]:
    lists = [triple for triple in triples if isinstance(triple, list) and len(triple) == 3]
    return [triple for triple in lists if all(isinstance(part, str) and part.strip() for part in triple)]


def gold_ids(question: dict[str, Any], documents: list[dict[str, Any]]) -> set[str]:
    """Ids of the passages that the question needs: MuSiQue's flags, else the titles of the supporting facts."""
    if "paragraphs" in question:
        wanted = {f"{p['title']}\n{p['paragraph_text']}" for p in question["paragraphs"] if p["is_supporting"]}
        return {doc["id"] for doc in documents if doc["passage"] in wanted}
    titles = {title for title, _ in question["supporting_facts"]}
    return {doc["id"] for doc in documents if doc["title"] in titles}


def list_texts(documents: list[dict[str, Any]], names: dict[str, list[str]]) -> list[str]:
    """Every text that the peer will ask a vector for, in its own spelling."""
    triples = [triple for doc in documents for triple in doc["triplets"]]
    texts = [doc["passage"] for doc in documents] + spelled([end for s, _, o in triples for end in (s, o)])
    texts += [" ".join(spelled(triple)) for triple in triples]
    texts += [text for question, found in names.items() for text in (question, *spelled(found))]
    return list(dict.fromkeys(texts))


def synthesize(folder: Path, sizes: Sequence[int], n_questions: int, seed: int) -> None:
    """Write a data set with power-law degrees and random unit vectors, in the files that the other options name."""
    (n_passages, n_triples), rng = sizes, np.random.default_rng(seed)
    weights = np.arange(1, n_triples // 2 + 1) ** -SKEW
    ends = rng.choice(len(weights), size=(n_triples, 2), p=weights / weights.sum())
    triples = [[f"entity {s}", f"links {n}", f"entity {o}"] for n, (s, o) in enumerate(ends)]
    titles = [f"passage {n}" for n in range(n_passages)]
    docs = [{"title": t, "passage": t, "extracted_triples": triples[n::n_passages]} for n, t in enumerate(titles)]
    asked = {f"question {n}": n for n in rng.choice(n_triples, size=n_questions, replace=False).tolist()}
    questions = [{"question": q, "supporting_facts": [[titles[n % n_passages], 0]]} for q, n in asked.items()]
    names = {question: [triples[n][0]] for question, n in asked.items()}
    for name, data in {"openie_synthetic": {"docs": docs}, "synthetic": questions, "entities": names}.items():
        (folder / f"{name}.json").write_text(json.dumps(data), "utf-8")
    texts = list_texts(read_dataset(folder)[0], names)
    vectors = rng.standard_normal((len(texts), DIMENSION), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.savez(folder / "vectors.npz", texts=np.frombuffer(json.dumps(texts).encode(), np.uint8), vectors=vectors)


def open_peer(degree: int | None, vectors: Vectors) -> VectorGraphRAG:
    """The peer, its defaults and the engine that it installs; only the embedder and `degree` (if given) are ours."""
    embeddings.get_provider = lambda *_args, **_options: vectors
    options = {"expansion_degree": degree} if degree else {}
    return VectorGraphRAG(Settings(openai_api_key="unused", embedding_provider="local", **options))


def count_calls(client: Any, watch: Stopwatch) -> None:
    """Time every read of the peer's Milvus client, by method and collection."""

    def watched(method: str, call: Any) -> Any:
        def run(*args: Any, **options: Any) -> Any:
            with watch(f"{method} {options['collection_name']}"):
                return call(*args, **options)

        return run

    for method in ("search", "query", "get"):
        setattr(client, method, watched(method, getattr(client, method)))


def timed(work: Callable[[], Any], standins: Stopwatch) -> tuple[float, Any]:
    """Seconds of `work` without what the stand-ins took, and its result."""
    start, before = time.perf_counter(), sum(standins.seconds.values())
    result = work()
    return time.perf_counter() - start - (sum(standins.seconds.values()) - before), result


def measure(peer: VectorGraphRAG, documents: list[dict[str, Any]], questions: Any, standins: Stopwatch) -> dict[str, Any]:
    """Speed, candidates and recall over the questions. Rates are fractions, times milliseconds."""
    ids = {doc["passage"]: doc["id"] for doc in documents}
    passages_of, milvus = peer._graph_builder.relation_to_passage_ids, Stopwatch()
    count_calls(peer._store.client, milvus)
    rows = defaultdict(list)
    for question in questions:
        peer._reranker.candidates, peer._reranker.prompt_chars = (), 0
        seconds, result = timed(partial(peer.retrieve, question["question"], top_k=max(CUTOFFS)), standins)
        gold, found = gold_ids(question, documents), [ids[text] for text in result.retrieved_passages]
        reachable = {passage for relation in peer._reranker.candidates for passage in passages_of[relation]}
        rows["mean_ms"].append(1000 * seconds)
        rows["candidates_mean"].append(len(peer._reranker.candidates))
        rows["candidate_ceiling"].append(len(gold & reachable) / len(gold))
        rows["prompt_tokens_mean"].append(peer._reranker.prompt_chars / CHARS_PER_TOKEN)
        for k in CUTOFFS:
            rows[f"recall@{k}"].append(len(gold & set(found[:k])) / len(gold))
    p50, p95 = np.percentile(rows["mean_ms"], [50, 95]).tolist()
    report = {"questions": len(questions), "p50_ms": p50, "p95_ms": p95}
    report |= {name: float(np.mean(values)) for name, values in rows.items()}
    parts = {label: 1000 * seconds / len(questions) for label, seconds in milvus.seconds.items()}
    return report | {"round_trips": sum(milvus.calls.values()) / len(questions), "milvus_ms": parts}


def memory_mb() -> dict[str, float]:
    """Highest resident memory so far, MiB: of this process, and of the embedded Milvus that it started (Linux)."""
    children = [c for task in Path("/proc/self/task").glob("*/children") for c in task.read_text().split()]
    marks = [re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{child}/status").read_text()) for child in children]
    engine = sum(int(mark[1]) for mark in marks if mark) / 1024
    return {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "engine": engine}


def run(options: argparse.Namespace, documents: list[dict[str, Any]], questions: Any, names: Any) -> dict[str, Any]:
    """Index everything, ask the questions; in a temporary folder, where the peer leaves its database and cache."""
    standins = Stopwatch()
    vectors, before = Vectors(options.vectors, standins), memory_mb()
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        peer = open_peer(options.degree, vectors)
        index_seconds, _ = timed(partial(peer.rebuild_documents_with_triplets, documents, False), standins)
        peer._reranker = CosineReranker(peer._reranker, vectors, options.selected, standins)
        peer._ensure_retriever().entity_extractor = SimpleNamespace(extract=lambda question: spelled(names[question]))
        report = {"index_seconds": index_seconds, **measure(peer, documents, questions, standins)}
        after = memory_mb()
        peer._store.client.close()
    report |= {"peak_mb": sum(after.values()), "peak_mb_parts": after, "vectors_mb": before["process"]}
    report |= {"engine": f"milvus-lite {version('milvus-lite')}", "pymilvus": version("pymilvus")}
    report |= {"peer": version("vector-graph-rag"), "selected": options.selected}
    return report | {"settings": {name: getattr(peer.settings, name) for name in SETTINGS}}


def main() -> None:
    options = parse()
    if options.synthetic:
        synthesize(options.data, options.synthetic, options.limit or 100, options.seed)
    documents, questions = read_dataset(options.data)
    names = json.loads(options.entities.read_text("utf-8"))
    if options.list_texts:
        options.list_texts.write_text(json.dumps(list_texts(documents, names)), "utf-8")
        return
    report = json.dumps(run(options, documents, questions[: options.limit], names))
    if options.out:
        options.out.write_text(report, "utf-8")
    print(report)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="data set folder in HippoRAG's layout")
    parser.add_argument("--entities", type=Path, help="JSON: question to the names in it (default: DATA/entities.json)")
    parser.add_argument("--vectors", type=Path, help="npz of precomputed vectors (default: DATA/vectors.npz)")
    parser.add_argument("--limit", type=int, help="ask the first N questions only; the index is always whole")
    parser.add_argument("--out", type=Path, help="write the JSON here too")
    parser.add_argument("--list-texts", type=Path, help="write the texts that need a vector, as a JSON list, and stop")
    parser.add_argument("--selected", type=int, default=5, help="relations that the reranker passes on; 0 is all")
    parser.add_argument("--degree", type=int, help="expansion degree (default: the peer's own)")
    parser.add_argument("--synthetic", type=int, nargs=2, metavar=("PASSAGES", "TRIPLES"), help="fill DATA first")
    parser.add_argument("--seed", type=int, default=0, help="of the synthetic data")
    options = parser.parse_args()
    options.entities = options.entities or options.data / "entities.json"
    options.vectors = (options.vectors or options.data / "vectors.npz").resolve()
    return options


if __name__ == "__main__":
    main()
