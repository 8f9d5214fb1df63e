"""Measures vector-graph-rag, the peer, on the benchmark's data. Runs in the peer's own environment.

    python -m venv peer && peer/bin/pip install vector-graph-rag==0.4.0
    peer/bin/python peer_vector_graph_rag.py --data DIR --entities E.json --list-texts TEXTS.json
    peer/bin/python peer_vector_graph_rag.py --data DIR --entities E.json --vectors VECTORS.npz --out OUT.json

In between, TEXTS.json is embedded into VECTORS.npz: `texts`, the UTF-8 bytes (uint8) of the JSON list of n strings, and
`vectors`, float32 [n, d] of unit length. The peer keeps its defaults and its code path: builder, inserts, `retrieve`.
Three parts that need a model are stood in for, and the time spent in the stand-ins is taken off: embeddings (looked up
by text; a missing one is an error), the names in a question (a list, the same for both systems) and the reranker:
candidates by cosine of relation and question. The peer asks its model for 5 relations, so `--selected` is 5; 0 is all.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from vector_graph_rag import VectorGraphRAG
from vector_graph_rag.config import Settings
from vector_graph_rag.llm.extractor import processing_phrases
from vector_graph_rag.storage import embeddings

CUTOFFS = (2, 5, 10)
CHARS_PER_TOKEN = 4  # kind to the peer: the identifiers in its prompt take more tokens than that
DIMENSION, SKEW = 384, 0.5  # of synthetic data: the entity of rank r is drawn with weight r ** -SKEW
Rows = list[dict[str, Any]]


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
    """Stands in for the peer's embedding provider."""

    def __init__(self, path: Path, watch: Stopwatch) -> None:
        stored = np.load(path)
        self.matrix: np.ndarray = stored["vectors"].astype(np.float32, copy=False)
        self.rows = {text: row for row, text in enumerate(json.loads(stored["texts"].tobytes()))}
        self.dimension, self.watch = int(self.matrix.shape[1]), watch

    def encode(self, texts: str | list[str], **_options: Any) -> np.ndarray:
        with self.watch("embedding"):
            return self.of([texts] if isinstance(texts, str) else texts)

    def of(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors, [n, d]; KeyError names the text that was not embedded beforehand (see --list-texts)."""
        return self.matrix[[self.rows[text] for text in texts]]


class CosineReranker:
    """Stands in for the peer's model; leaves in `candidates` and `prompt_chars` what the model would have seen."""

    def __init__(self, peer: Any, vectors: Vectors, selected: int, watch: Stopwatch) -> None:
        self.peer, self.vectors, self.selected, self.watch = peer, vectors, selected, watch

    def rerank(self, query: str, relation_ids: list[str], relation_texts: list[str]) -> tuple[list[str], list[str]]:
        with self.watch("reranker"):
            lines = self.peer._format_relations(relation_ids, relation_texts)
            self.candidates, self.prompt_chars = relation_ids, len(self.peer._build_prompt(query, lines))
            scores = self.vectors.of(relation_texts) @ self.vectors.of([query])[0]
            best = np.argsort(-scores, kind="stable")[: self.selected or None]
            return [relation_ids[row] for row in best], [relation_texts[row] for row in best]


def spelled(names: list[str]) -> list[str]:
    return [processing_phrases(name) for name in names]


def read_dataset(folder: Path) -> tuple[Rows, Rows]:
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


def gold_ids(question: dict[str, Any], documents: Rows) -> set[str]:
    """Ids of the passages that the question needs: MuSiQue's flags, else the titles of the supporting facts."""
    titles = {title for title, _ in question.get("supporting_facts", ())}
    flagged = [p for p in question.get("paragraphs", ()) if p["is_supporting"]]
    passages = {f"{p['title']}\n{p['paragraph_text']}" for p in flagged}
    return {doc["id"] for doc in documents if doc["title"] in titles or doc["passage"] in passages}


def list_texts(documents: Rows, names: dict[str, list[str]]) -> list[str]:
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
    given = {"expansion_degree": degree} if degree else {}
    return VectorGraphRAG(Settings(openai_api_key="unused", embedding_provider="local", **given))


def watched(watch: Stopwatch, method: str, call: Any, collection_name: str, **options: Any) -> Any:
    with watch(f"{method} {collection_name}"):
        return call(collection_name=collection_name, **options)


def timed(work: Callable[[], Any], standins: Stopwatch) -> tuple[float, Any]:
    """Seconds of `work` without what the stand-ins took, and its result."""
    start, before = time.perf_counter(), sum(standins.seconds.values())
    result = work()
    return time.perf_counter() - start - (sum(standins.seconds.values()) - before), result


def measure(peer: VectorGraphRAG, documents: Rows, questions: Rows, standins: Stopwatch) -> dict[str, Any]:
    """Speed, candidates and recall over the questions. Rates are fractions, times milliseconds."""
    ids = {doc["passage"]: doc["id"] for doc in documents}
    passages_of, client = peer._graph_builder.relation_to_passage_ids, peer._store.client
    milvus, rows = Stopwatch(), defaultdict(list)
    client.search = partial(watched, milvus, "search", client.search)
    client.query = partial(watched, milvus, "query", client.query)
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


def memory_mb() -> tuple[float, float]:
    """Highest resident memory so far, MiB: of this process, and of the embedded Milvus that it started.

    From /proc where there is one, since what getrusage tells begins with that of the process that started this one.
    """
    if not Path("/proc/self/status").is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10), 0.0
    children = [c for task in Path("/proc/self/task").glob("*/children") for c in task.read_text().split()]
    return peak_mb("self"), sum(map(peak_mb, children))


def peak_mb(process: str) -> float:
    marks = re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return sum(map(int, marks)) / 1024


def run(options: argparse.Namespace, documents: Rows, questions: Rows, names: Any) -> dict[str, Any]:
    """Index everything, ask the questions; in a temporary folder, where the peer leaves its database and cache."""
    standins = Stopwatch()
    vectors = Vectors(options.vectors or options.data / "vectors.npz", standins)
    before_mb, _ = memory_mb()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        peer = open_peer(options.degree, vectors)
        index_seconds, _ = timed(partial(peer.rebuild_documents_with_triplets, documents, False), standins)
        peer._reranker = CosineReranker(peer._reranker, vectors, options.selected, standins)
        peer._ensure_retriever()._extract_query_entities = lambda question: spelled(names[question])
        report = {"index_seconds": index_seconds, **measure(peer, documents, questions, standins)}
        peer_mb, engine_mb = memory_mb()
        peer._store.client.close()
    report |= {"peak_mb": peer_mb + engine_mb, "engine_mb": engine_mb, "before_mb": before_mb}
    report |= {"engine": f"milvus-lite {version('milvus-lite')}", "pymilvus": version("pymilvus")}
    report |= {"peer": version("vector-graph-rag"), "settings_changed": sorted(peer.settings.model_fields_set)}
    return report | {"selected": options.selected}


def main() -> None:
    options = parse()
    if options.synthetic:
        synthesize(options.data, options.synthetic, options.limit or 100, options.seed)
    documents, questions = read_dataset(options.data)
    names = json.loads((options.entities or options.data / "entities.json").read_text("utf-8"))
    if options.list_texts:
        options.list_texts.write_text(json.dumps(list_texts(documents, names)), "utf-8")
        return
    out = options.out.resolve()  # before `run` changes the working folder
    report = json.dumps(run(options, documents, questions[: options.limit], names))
    out.write_text(report, "utf-8")
    print(report)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="data set folder in HippoRAG's layout")
    parser.add_argument("--entities", type=Path, help="JSON: question to the names in it (default: DATA/entities.json)")
    parser.add_argument("--vectors", type=Path, help="npz of precomputed vectors (default: DATA/vectors.npz)")
    parser.add_argument("--limit", type=int, help="ask the first N questions only; the index is always whole")
    parser.add_argument("--out", type=Path, default=Path(os.devnull), help="write the JSON here too")
    parser.add_argument("--list-texts", type=Path, help="write the texts that need a vector, as a JSON list, and stop")
    parser.add_argument("--selected", type=int, default=5, help="relations that the reranker passes on; 0 is all")
    parser.add_argument("--degree", type=int, help="expansion degree (default: the peer's own)")
    parser.add_argument("--synthetic", type=int, nargs=2, metavar=("PASSAGES", "TRIPLES"), help="fill DATA first")
    parser.add_argument("--seed", type=int, default=0, help="of the synthetic data")
    return parser.parse_args()


if __name__ == "__main__":
    main()
