"""Measures this package, and vector-graph-rag beside it, on a data set with given triples and no chat model.

    python scripts/benchmark.py [--data DIR] [--short] [--peer] [--limit N] [--json]
    python scripts/benchmark.py --engines [--short] [--json]

DIR is a data set in HippoRAG's layout (NAME.json, openie_NAME.json); left out, it is GRAPHRAG_DATA, and where
that is not set, synthetic data. `--short` takes under five minutes: of a data set 200 questions and 1,000
passages, those that the questions need among them.

How it is fair. Each side runs in a process of its own, with its own defaults on the embedded engine that it
installs, so that peak memory (with the engine's process) is its own. Vectors are made beforehand by one
model and looked up by both; the time of looking them up is taken off on both sides. The peer, which would ask a
chat model for the names in a question, gets names for nothing, as it does the ranking in place of its model's
(see peer_vector_graph_rag.py); this package's own name matching and local ranking stay inside its times. Machines
are shared, so the sides take turns, twice unless --short, and of each figure the better round counts.

Vectors are kept in the work folder: the first run on a data set makes them, which takes minutes. Databases stand in
the folder for temporary files (TMPDIR), which must not be in memory for milvus-lite 2.5.1. `--peer` makes an
environment of its own, `.venv-peer`; `--engines` one with the other line of milvus-lite, as `make test-lite3` does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmark_data import (
    DIMENSION,
    Dataset,
    VectorCache,
    our_texts,
    question_names,
    shorten,
    synthesize,
)

from graphrag_milvus.embeddings import LocalEmbeddings
from graphrag_milvus.testing import HashingEmbeddings

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(__file__).resolve().parent
PEER, PEER_VENV = "vector-graph-rag==0.4.0", ROOT / ".venv-peer"
LITE3_VENV = ROOT / ".venv-lite3"
COMPARED = ("p50_ms", "p95_ms", "index_seconds", "peak_mb")  # of which the better round counts
BOTH = (
    *("candidate_ceiling", "candidates_mean", *COMPARED, "round_trips", "prompt_tokens_mean"),
    *("recall@2", "recall@5", "recall@10"),
)
Report = dict[str, Any]


# --- running a side -----------------------------------------------------------------------------------------------


def python_of(venv: Path) -> Path:
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def run_script(python: Path | str, name: str, *arguments: object) -> None:
    """Run one of these scripts: no setting or key of this shell reaches it, and what it prints goes to stderr."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GRAPHRAG_", "OPENAI_"))}
    command = [str(python), str(SCRIPTS / name), *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:  # no .env either
        done = subprocess.run(command, cwd=folder, env=environment, stdout=sys.stderr, check=False)
    if done.returncode:
        raise SystemExit(f"{name} ended with status {done.returncode}; see above")


def measured(python: Path | str, name: str, out: Path, *arguments: object) -> Report:
    """What a script wrote into `out`."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    started = time.monotonic()
    run_script(python, name, *arguments, "--out", out)
    print(f"... {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    report: Report = json.loads(out.read_text("utf-8"))
    return report


def make_peer() -> Path:
    """The Python of the peer's environment, made where it is missing."""
    python, stamp = python_of(PEER_VENV), PEER_VENV / f".installed-{PEER}"
    if not stamp.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(PEER_VENV)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PEER]
        subprocess.run(install, stdout=sys.stderr, check=True)
        stamp.touch()
    return python


def make_lite3() -> Path:
    """The Python of the environment with the other embedded engine, made as the Makefile says."""
    target = f"{LITE3_VENV.name}/.installed"
    subprocess.run(["make", target, f"PYTHON={sys.executable}"], cwd=ROOT, stdout=sys.stderr, check=True)
    return python_of(LITE3_VENV)


# --- the two sides ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bench:
    """One data set, with a folder for what is made from it."""

    dataset: Dataset
    work: Path
    embeddings: LocalEmbeddings | HashingEmbeddings
    limit: int | None

    @property
    def name(self) -> str:
        """Of the model that makes the vectors; it is the workspace's too."""
        return self.embeddings.name if isinstance(self.embeddings, LocalEmbeddings) else "hashing"

    @property
    def cache(self) -> VectorCache:
        parts = (c if c.isalnum() else "-" for c in self.name)
        return VectorCache(self.work.parent / f"vectors-{''.join(parts)}.npz", self.embeddings)

    def arguments(self, side: str) -> list[object]:
        limit = ["--limit", self.limit] if self.limit else []
        return ["--data", self.dataset.folder, "--vectors", self.work / f"{side}.npz", *limit]

    def prepare_ours(self) -> None:
        questions = [q["question"] for q in self.dataset.questions()[: self.limit]]
        self.cache.write(our_texts(self.dataset.documents(), questions), self.work / "ours.npz")

    def ours(self) -> Report:
        embed = ["--embed"] if isinstance(self.embeddings, LocalEmbeddings) else []
        arguments = [*self.arguments("ours"), "--embedder", self.name, *embed]
        return measured(sys.executable, "benchmark_ours.py", self.work / "ours.json", *arguments)

    @property
    def entities(self) -> Path:
        return self.work / "entities.json"

    def prepare_peer(self, python: Path) -> None:
        """The names in the questions, and the vectors that the peer asks for."""
        if not self.entities.exists():
            names = question_names([q["question"] for q in self.dataset.questions()])
            self.entities.write_text(json.dumps(names), "utf-8")
        texts, script = self.work / "peer_texts.json", "peer_vector_graph_rag.py"
        run_script(python, script, "--data", self.dataset.folder, "--entities", self.entities, "--list-texts", texts)
        self.cache.write(json.loads(texts.read_text("utf-8")), self.work / "peer.npz")

    def peer(self, python: Path) -> Report:
        arguments = [*self.arguments("peer"), "--entities", self.entities]
        return measured(python, "peer_vector_graph_rag.py", self.work / "peer.json", *arguments)


def make_bench(options: argparse.Namespace) -> Bench:
    work: Path = options.work.resolve()
    if options.data is None:
        folder = work / ("synthetic-short" if options.short else "synthetic")
        return Bench(synthesize(folder, short=options.short), folder, HashingEmbeddings(DIMENSION), options.limit)
    dataset = Dataset(options.data.resolve())
    folder = work / (f"{dataset.name}-short" if options.short else dataset.name)
    folder.mkdir(parents=True, exist_ok=True)
    if options.short:
        dataset = shorten(dataset, folder)
    return Bench(dataset, folder, LocalEmbeddings(), options.limit)


def better(rounds: list[Report]) -> Report | None:
    """The round with the lowest median, with the lowest of each compared figure."""
    if not rounds:
        return None
    lowest = {name: min(one[name] for one in rounds) for name in COMPARED}
    best = min(rounds, key=lambda one: one["p50_ms"])
    embedded = [one["p50_with_embedding_ms"] for one in rounds if one.get("p50_with_embedding_ms")]
    return {**best, **lowest, "p50_with_embedding_ms": min(embedded, default=None)}


def compare(options: argparse.Namespace) -> Report:
    """Prepare, measure in turns, and put the two sides together."""
    bench, peer_python = make_bench(options), make_peer() if options.peer else None
    bench.prepare_ours()
    if peer_python:
        bench.prepare_peer(peer_python)
    ours, peer = [], []
    for _ in range(1 if options.short else 2):
        ours.append(bench.ours())
        if peer_python:
            peer.append(bench.peer(peer_python))
    report = joined(better(ours) or {}, better(peer))
    return {"dataset": bench.dataset.name, "embedder": bench.name, **report, "rounds": {"ours": ours, "peer": peer}}


def joined(ours: Report, peer: Report | None) -> Report:
    sides = {name: {"ours": ours[name], "peer": peer[name] if peer else None} for name in BOTH}
    report: Report = {
        "questions": ours["questions"],
        "index_speedup": peer["index_seconds"] / ours["index_seconds"] if peer else None,
        "query_speedup": peer["p50_ms"] / ours["p50_ms"] if peer else None,
        **sides,
        "p50_with_embedding_ms": ours["p50_with_embedding_ms"],
        "graph_seconds": ours["graph_seconds"],
        "stages_ms": ours["stages_ms"],
        "methods": ours["methods"],
    }
    report |= {name: ours[name] for name in ("passages", "relations", "entities", "failed")}
    engines = {"ours": ours["engine"], "pymilvus": ours["pymilvus"]}
    if peer:
        engines |= {"peer": peer["engine"], "peer_pymilvus": peer["pymilvus"], "vector-graph-rag": peer["peer"]}
    return report | {"machine": machine() | {"engines": engines}, "date": now()}


# --- engines ------------------------------------------------------------------------------------------------------


def compare_engines(options: argparse.Namespace) -> Report:
    """The default embedded engine and milvus-lite 3, in turns; of each figure the better round."""
    work: Path = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    pythons = [Path(sys.executable), make_lite3()]
    rounds: list[list[Report]] = [[], []]
    for _ in range(1 if options.short else 2):
        for found, python in zip(rounds, pythons, strict=True):
            size = ["--relations", 1_000 if options.short else 20_000]
            found.append(measured(python, "benchmark_engines.py", work / "engine.json", *size))
    return {"engines": [lowest(found) for found in rounds], "machine": machine(), "date": now()}


def lowest(rounds: list[Report]) -> Report:
    first = rounds[0]
    return {k: min(one[k] for one in rounds) if isinstance(v, float) else v for k, v in first.items()}


# --- telling ------------------------------------------------------------------------------------------------------


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def machine() -> Report:
    load = [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else None
    return {"cpu": cpu_model(), "cores": os.cpu_count(), "load": load, "python": platform.python_version()}


def cpu_model() -> str:
    """The model where the system tells it, else the architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.is_file() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def figure(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:,.4g}"


def comparison_table(report: Report) -> list[str]:
    lines = [f"{report['dataset']}: {report['passages']:,} passages, {report['relations']:,} relations, "]
    lines[0] += f"{report['questions']:,} questions; {report['embedder']}"
    lines.append(f"{'':26}{'ours':>12}{'peer':>12}")
    lines += [f"{name:26}{figure(report[name]['ours']):>12}{figure(report[name]['peer']):>12}" for name in BOTH]
    for name in ("index_speedup", "query_speedup", "p50_with_embedding_ms", "graph_seconds"):
        lines.append(f"{name:26}{figure(report[name]):>12}")
    lines.append("stages (mean ms): " + ", ".join(f"{k} {v:.1f}" for k, v in report["stages_ms"].items()))
    for name, one in report["methods"].items():
        stages = ", ".join(f"{k} {v:.1f}" for k, v in one["stages_ms"].items())
        lines.append(f"{name}: recall@5 {one['recall@5']:.3f}, p50 {one['p50_ms']:.1f} ms ({stages})")
    return [*lines, machine_line(report)]


def engines_table(report: Report) -> list[str]:
    engines = report["engines"]
    names = list(dict.fromkeys(name for one in engines for name, value in one.items() if not isinstance(value, str)))
    lines = [f"{'':38}" + "".join(f"{one['engine']:>20}" for one in engines)]
    lines += [f"{name:38}" + "".join(f"{figure(one.get(name)):>20}" for one in engines) for name in names]
    return [*lines, machine_line(report)]


def machine_line(report: Report) -> str:
    one = report["machine"]
    return f"{one['cpu']}, {one['cores']} cores, load {one['load']}, Python {one['python']}, {report['date']}"


def main() -> None:
    options = parse()
    report = compare_engines(options) if options.engines else compare(options)
    lines = engines_table(report) if options.engines else comparison_table(report)
    print(json.dumps(report, ensure_ascii=False) if options.json else "\n".join(lines))


def parse() -> argparse.Namespace:
    default = os.environ.get("GRAPHRAG_DATA")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(default) if default else None, help="folder of one data set")
    parser.add_argument("--short", action="store_true", help="a part of the data, one round")
    parser.add_argument("--peer", action="store_true", help="measure vector-graph-rag beside this package")
    parser.add_argument("--limit", type=int, help="ask the first N questions only; the index is always whole")
    parser.add_argument("--work", type=Path, default=Path(".cache/benchmark"), help="folder for vectors and reports")
    parser.add_argument("--engines", action="store_true", help="compare the two lines of the embedded engine instead")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
