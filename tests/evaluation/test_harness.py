"""Whole evaluations of small data sets: figures, interruptions, other settings, answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from evaluating import PEOPLE, SERVER, passage, passages, questions, real, settings, timeless, write

from graphrag_milvus import GraphRAG
from graphrag_milvus.embeddings import LocalEmbeddings
from graphrag_milvus.errors import InputError, MissingDependencyError, SettingsError
from graphrag_milvus.evaluation import Evaluation, evaluate, harness, read_dataset
from graphrag_milvus.evaluation.candidates import TokenCounter
from graphrag_milvus.evaluation.rankings import Folder
from graphrag_milvus.prompts import select_relations
from graphrag_milvus.rag import METHODS
from graphrag_milvus.settings import MilvusSettings, RetrievalSettings
from graphrag_milvus.testing import HashingEmbeddings, ScriptedChatModel


def run(dataset: Path, out: Path | None, methods: str = "naive", **options: Any) -> Evaluation:
    options = {"extractor": "given", "settings": settings(), "progress": False, **options}
    return evaluate(dataset, methods.split(","), out=out, **options)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def done(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Evaluation]:
    """All methods on the tiny set. Tests that use it add nothing to its folder."""
    out = tmp_path_factory.mktemp("out") / "run"
    return out, run(tiny, out, "all,auto")


class Asked:
    """Counts what is asked of `GraphRAG`, and stops it by an interruption where it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stop_at: int | None = None) -> None:
        self.questions: list[str] = []
        original = GraphRAG.retrieve

        def retrieve(rag: GraphRAG, question: str, **options: Any) -> Any:
            self.questions.append(question)
            if len(self.questions) == stop_at:
                raise KeyboardInterrupt
            return original(rag, question, **options)

        monkeypatch.setattr(GraphRAG, "retrieve", retrieve)


# --- figures ------------------------------------------------------------------------------------------------------


def test_every_method_is_measured(done: tuple[Path, Evaluation]) -> None:
    _, found = done
    assert (found.dataset, found.questions, found.passages, found.undone) == ("tiny", 4, 8, [])
    assert list(found.results) == [*METHODS, "auto"]
    wanted = {"recall@2", "recall@5", "recall@10", "full@5", "mrr", "ndcg@10", "ms_p50", "ms_p95", "candidates_mean"}
    for result in found.results.values():
        assert wanted | {"oracle_recall", "prompt_tokens_mean"} < set(result)
        assert 0 < result["recall@2"] <= result["recall@5"] <= result["recall@10"] == 1.0
        assert 0 < result["ms_p50"] <= result["ms_p95"] < result["ms_p95_with_embedding"] + 1e-6
        assert result["per_type"].keys() == {"compositional", "inference"}
        assert result["per_hop"].keys() == {"2"}
        assert "embed" in result["stages_ms"]
    assert (found.results["naive"]["oracle_recall"], found.results["naive"]["prompt_tokens_mean"]) == (None, None)
    assert sum(found.results["auto"]["ran"].values()) == 4
    assert len(found.significance) == len(found.results) * (len(found.results) - 1) // 2
    assert {"extractor": "given", "passages": 8, "relations": 8, "entities": 12}.items() <= found.index.items()


def test_rankings_on_disk_give_the_same_figures_by_hand(done: tuple[Path, Evaluation], tiny: Path) -> None:
    out, found = done
    data = read_dataset(tiny)
    for method, result in found.results.items():
        lines = (out / "rankings" / f"{method}.jsonl").read_text("utf-8").splitlines()
        rows = {row["id"]: row for row in map(json.loads, lines)}
        recalls = [len({*q.gold} & {*rows[q.id]["documents"][:5]}) / len(q.gold) for q in data.questions]
        assert result["recall@5"] == pytest.approx(sum(recalls) / 4, abs=1e-5)
        assert all(len(row["documents"]) == len(row["scores"]) == len({*row["documents"]}) for row in rows.values())
    assert json.loads((out / "report.json").read_text("utf-8")) == json.loads(json.dumps(found.as_dict()))


def test_candidates_are_those_of_the_trace(done: tuple[Path, Evaluation], tiny: Path) -> None:
    out, found = done
    data = read_dataset(tiny)
    rows = Folder(out).rankings("subgraph").read()
    record = json.loads((out / "run.json").read_text("utf-8"))
    own = settings(milvus=MilvusSettings(uri=str(out / "index.db")), workspace=record["index"]["stats"]["workspace"])
    counter, shares = TokenCounter(), []
    with GraphRAG(own) as rag:
        for question in data.questions:
            trace = rag.retrieve(question.text, method="subgraph", k=10).trace
            hits = rag.store.get("relations", [int(i) for i in trace.candidate_ids], ["doc_id", "text"])
            reached = {row["doc_id"] for row in hits.values()}
            assert {*rows[question.id].reached} == reached
            shares.append(len(reached & {*question.gold}) / len(question.gold))
            texts = [hits[int(i)]["text"] for i in trace.candidate_ids]
            messages = select_relations(question.text, [f"[{n}] {t}" for n, t in enumerate(texts, 1)], 10)
            assert rows[question.id].prompt_tokens == sum(counter.count(text) for _, text in messages)
            assert rows[question.id].candidates == len(texts)
    assert found.results["subgraph"]["oracle_recall"] == pytest.approx(sum(shares) / 4, abs=1e-5)


def test_tokens_without_the_local_model_are_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: LocalEmbeddings) -> None:
        raise MissingDependencyError("not here")

    monkeypatch.setattr(LocalEmbeddings, "tokenizer", missing)
    counter = TokenCounter()
    assert counter.name == "characters / 4"
    assert counter.count("12345678") == 2.0


@pytest.mark.usefixtures("local_extra")
def test_tokens_of_the_local_model() -> None:
    counter = TokenCounter()
    assert "MiniLM" in counter.name
    assert counter.count("a town in Italy") == 4
    assert counter.count("word " * 5_000) == 5_000  # nothing is cut
    assert counter.count("\ud83d") >= 1


# --- interruptions ------------------------------------------------------------------------------------------------


def test_a_run_that_was_killed_goes_on(
    tiny: Path, tmp_path: Path, done: tuple[Path, Evaluation], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(HashingEmbeddings):
        name = "HashingEmbeddings"

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            if any("Tornvik" in text for text in texts) and len(texts) > 1:
                raise KeyboardInterrupt
            return super().embed_documents(texts)

    own = settings()
    own.index.window = 2
    with pytest.raises(KeyboardInterrupt):  # within the index
        run(tiny, tmp_path, "all,auto", settings=own, embeddings=Interrupted())
    assert not (tmp_path / "rankings").exists()

    with monkeypatch.context() as patch:
        first = Asked(patch, stop_at=4)  # after the question that warms up, and two more
        with pytest.raises(KeyboardInterrupt):
            run(tiny, tmp_path, "all,auto")
    file = next((tmp_path / "rankings").glob("*.jsonl"))
    whole = file.read_bytes()
    assert whole.count(b"\n") == 2
    file.write_bytes(whole[:-30])  # the second line half-written

    second = Asked(monkeypatch)
    found = run(tiny, tmp_path, "all,auto")
    assert len(first.questions) == 4
    assert len(second.questions) == 5 * len(found.results) - 1
    assert any(f"1 rankings of {file.stem} were there already" in note for note in found.notes)
    assert found.index["passages"] == 8
    assert timeless(found.as_dict()) == timeless(done[1].as_dict())

    third = Asked(monkeypatch)
    again = run(tiny, tmp_path, "all,auto", limit=2)
    assert third.questions == []
    assert (again.questions, again.index["reused"]) == (2, True)


def test_a_new_method_or_question_uses_the_index_that_is_there(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tiny, tmp_path, limit=2)
    monkeypatch.setattr(GraphRAG, "add", lambda *_, **__: pytest.fail("indexed again"))
    found = run(tiny, tmp_path, "hybrid,naive")
    assert (found.questions, found.index["reused"]) == (4, True)


def test_an_index_that_was_deleted_is_made_again(tiny: Path, tmp_path: Path) -> None:
    before = run(tiny, tmp_path)
    (tmp_path / "index.db").unlink()
    found = run(tiny, tmp_path, "naive,hybrid")
    assert found.index["passages"] == before.index["passages"]
    assert found.index["reused"] is False
    assert found.results["hybrid"]["recall@10"] == 1.0


def test_a_question_that_changed_is_asked_again(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tiny, tmp_path / "out")
    changed = questions()
    changed[1]["question"] = "Where was Bruno Kost born?"
    asked = Asked(monkeypatch)
    run(write(tmp_path / "changed", changed), tmp_path / "out")
    assert asked.questions[1:] == ["Where was Bruno Kost born?"]


def test_fresh_asks_everything_again(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tiny, tmp_path, top_k=3)
    with pytest.raises(InputError, match="top_k was 3 and is 10"):
        run(tiny, tmp_path)
    asked = Asked(monkeypatch)
    found = run(tiny, tmp_path, fresh=True)
    assert len(asked.questions) == 5
    assert found.results["naive"]["recall@10"] == 1.0


def test_rankings_by_other_code_are_used_and_told(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tiny, tmp_path)
    [note] = run(tiny, tmp_path).notes
    assert "other code" not in note
    monkeypatch.setattr(harness, "_code_digest", lambda: "of tomorrow")
    [note] = run(tiny, tmp_path).notes
    assert "by other code than this; --fresh makes them anew" in note
    run(write(tmp_path / "more", [*questions(), {**questions()[0], "_id": "q9"}]), tmp_path)  # one more is asked
    [note] = run(tiny, tmp_path).notes
    assert "by other code than this" in note
    assert run(tiny, tmp_path, fresh=True).notes == []


def test_every_module_of_the_graph_and_of_retrieval_counts_as_code_that_ranks() -> None:
    counted = set(harness._code_files())
    rooms = ("graphrag_milvus.graph", "graphrag_milvus.retrieval")
    loaded = {Path(str(m.__file__)) for name, m in list(sys.modules.items()) if name.startswith(rooms)}
    assert len(loaded) > 15
    assert loaded <= counted
    assert all(file.is_file() for file in counted)


# --- folders of something else ------------------------------------------------------------------------------------


def test_a_folder_of_other_data_or_settings_is_refused(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(tiny, out)
    other = write(tmp_path / "other", given=passages()[:4])
    changes: list[dict[str, Any]] = [{"dataset": other}, {"extractor": "given+local"}, {"embeddings": _Named(32)}]
    for change in changes:
        with pytest.raises(InputError, match="is of another evaluation"):
            run(**{"dataset": tiny, "out": out, **change})
    with pytest.raises(InputError, match="candidates was 300 and is 7"):
        run(tiny, out, settings=settings(retrieval=RetrievalSettings(candidates=7)))
    with pytest.raises(InputError, match="model was None and is 'ScriptedChatModel'"):
        run(tiny, out, llm=ScriptedChatModel())
    (out / "rankings" / "hybrid.jsonl").write_bytes((out / "rankings" / "naive.jsonl").read_bytes())
    with pytest.raises(InputError, match=r"the rankings of 'hybrid' in .* by nothing that run\.json knows of"):
        run(tiny, out, "naive,hybrid")
    (out / "run.json").unlink()
    with pytest.raises(InputError, match=r"no run\.json"):
        run(tiny, out)


class _Named(HashingEmbeddings):
    """Embeddings of another model."""


def test_two_processes_do_not_work_in_one_folder(tiny: Path, tmp_path: Path) -> None:
    with Folder(tmp_path).locked(), pytest.raises(InputError, match="another evaluation is working in"):
        run(tiny, tmp_path)
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(InputError, match="cannot write into"):
        run(tiny, tmp_path / "file")


def test_two_runs_compare(tiny: Path, tmp_path: Path, done: tuple[Path, Evaluation]) -> None:
    found = run(tiny, tmp_path / "here", "naive,hybrid", limit=3, compare=done[0])
    assert found.compare is not None
    assert found.compare["methods"].keys() == {"naive", "hybrid"}
    one = found.compare["methods"]["naive"]
    assert (one["questions"], one["mean"], one["p"]) == (3, 0.0, 1.0)
    assert one["here"] == one["there"] == found.results["naive"]["recall@5"]

    only = run(tiny, tmp_path / "there", "naive", limit=1)
    assert only.compare is None
    found = run(tiny, tmp_path / "here", "naive,hybrid", compare=tmp_path / "there")
    assert found.compare is not None
    assert found.compare["methods"].keys() == {"naive"}
    assert any("no rankings of hybrid" in note for note in found.notes)


def test_runs_that_cannot_be_compared(tiny: Path, tmp_path: Path, done: tuple[Path, Evaluation]) -> None:
    with pytest.raises(InputError, match=r"no run\.json of an evaluation"):
        run(tiny, tmp_path, compare=tmp_path / "nowhere")
    other = write(tmp_path / "other", given=passages()[:4], name="fewer")
    with pytest.raises(InputError, match="is of other data \\('tiny'\\) than 'fewer'"):
        run(other, None, compare=done[0])


# --- input at the edge --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"methods": "magic"}, SettingsError, "no method 'magic'; known are all, auto, naive"),
        ({"methods": " , "}, SettingsError, "no method is named"),
        ({"limit": 0}, InputError, "limit is 0"),
        ({"top_k": 0}, InputError, "top-k is 0"),
        ({"top_k": 20_000}, InputError, "16,384"),
        ({"extractor": "magic"}, SettingsError, "magic"),
        ({"extractor": "llm"}, SettingsError, "GRAPHRAG_LLM__"),
        ({"answers": True}, SettingsError, "answers need a chat model"),
    ],
)
def test_what_cannot_be_meant_costs_no_time(
    tiny: Path, tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(tiny, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_without_the_library_of_measures(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ir_measures", None)
    with pytest.raises(MissingDependencyError, match=r"graphrag-milvus\[evaluation\]"):
        run(tiny, None)


def test_more_is_asked_for_than_there_is(tmp_path: Path) -> None:
    """A corpus of one passage, of which the gold of a question has two more; k and limit beyond all."""
    data = write(tmp_path / "data", questions()[:1], passages()[:1])
    found = run(data, None, "all", top_k=50, limit=10)
    assert (found.questions, found.passages) == (1, 1)
    for result in found.results.values():
        assert (result["recall@2"], result["recall@50"], result["full@5"], result["mrr"]) == (0.5, 0.5, 0.0, 1.0)
        assert result["ndcg@10"] == pytest.approx(0.61315, abs=1e-5)  # 1 / (1 + 1 / log2 3)
    assert "limit is 10; the data set has 1 questions" in found.notes
    assert "1 gold passages are not in the corpus; they count as not found" in found.notes


def test_passages_without_triples(tmp_path: Path) -> None:
    found = run(write(tmp_path, corpus={p: [f"{p} was born in {t}."] for p, t, _ in PEOPLE}), None, "all,auto")
    assert found.index["relations"] == 0
    assert all(result["recall@10"] == 0.5 for result in found.results.values())
    assert found.results["auto"]["ran"] == {"hybrid": 4}


def test_malformed_triples_are_counted_and_the_rest_is_indexed(tmp_path: Path) -> None:
    bad = passage("Ada", "Ada wrote.", [["Ada", "wrote"], float("nan"), ["Ada", "is", float("nan")], "text"])
    found = run(write(tmp_path, given=[bad, *passages()]), None)
    assert (found.index["relations"], found.index["warnings"], found.undone) == (8, 1, [])


def test_a_long_passage_counts_once(tmp_path: Path) -> None:
    long = passage("Ada Ferro", "\n\n".join(["Ada Ferro was born in Pontalto, and wrote letters."] * 800), [])
    found = run(write(tmp_path / "data", questions()[:1], [long, *passages()[1:]]), tmp_path / "out", top_k=5)
    assert found.index["passages"] == 10
    [row] = Folder(tmp_path / "out").rankings("naive").read().values()
    assert len(set(row.documents)) == len(row.documents)


def test_passages_that_cannot_be_indexed_are_told_and_tried_again(tiny: Path, tmp_path: Path) -> None:
    class Failing(HashingEmbeddings):
        name = "HashingEmbeddings"

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            vectors = super().embed_documents(texts)
            return [[0.0] * 64 if "Veldhaven lies" in t else v for t, v in zip(texts, vectors, strict=True)]

    found = run(tiny, tmp_path, embeddings=Failing())
    assert found.index["passages"] == 7
    assert any(line.startswith("1 passages are not indexed") for line in found.undone)
    again = run(tiny, tmp_path, "hybrid")
    assert (again.index["passages"], again.undone) == (8, [])


# --- on a server --------------------------------------------------------------------------------------------------


@pytest.mark.server
@pytest.mark.skipif(not SERVER, reason="needs a Milvus server")
def test_a_server_keeps_what_a_folder_belongs_to_and_nothing_else(tiny: Path, tmp_path: Path) -> None:
    own = settings(milvus=MilvusSettings(uri=SERVER))
    first = run(tiny, tmp_path, settings=own)
    assert not (tmp_path / "index.db").exists()
    own.workspace = first.index["stats"]["workspace"]
    assert own.workspace.startswith("evaluate_tiny_")
    with GraphRAG(own) as rag:
        try:
            assert rag.stats().passages == 8
            assert run(tiny, tmp_path, "hybrid", settings=own).index["reused"] is True
            passing = run(tiny, None, settings=own)
            assert passing.results["naive"]["recall@10"] == 1.0
            own.workspace = passing.index["stats"]["workspace"]
            assert own.workspace != first.index["stats"]["workspace"]
            with GraphRAG(own) as dropped:
                assert not dropped.store.exists()
        finally:
            rag.store.drop()


# --- answers ------------------------------------------------------------------------------------------------------


def model(answers: dict[str, Any], calls: list[str]) -> ScriptedChatModel:
    """Answers what is asked for a short answer; to select relations it names the first line."""

    def respond(messages: list[Any]) -> Any:
        text = str(messages[-1].text)
        if "Relations (at most" in text:
            return '{"thought_process": "", "useful_relationships": ["[1]"]}'
        question = text.rpartition("Question: ")[2]
        calls.append(question)
        reply = answers[question]
        return reply if isinstance(reply, Exception) else json.dumps({"thought_process": "so", "answer": reply})

    return ScriptedChatModel(respond=respond)


def test_a_model_answers_and_is_asked_once(tiny: Path, tmp_path: Path) -> None:
    asked = [q["question"] for q in questions()]
    replies = dict(zip(asked, ["Italy.", "the Kingdom of Holland", "no idea", "Russia"], strict=True))
    calls: list[str] = []
    found = run(tiny, tmp_path, "naive,subgraph", answers=True, llm=model(replies, calls))
    for result in found.results.values():
        assert result["em"] == 0.5
        assert result["f1"] == pytest.approx((1 + 0.5 + 0 + 1) / 4)
        assert result["per_type"]["inference"]["em"] == 0.5
    assert found.results["subgraph"]["llm_calls"] == 4
    assert found.results["naive"]["llm_calls"] == 0
    assert sorted(calls) == sorted(asked * 2)

    again = run(tiny, tmp_path, "naive,subgraph", answers=True, llm=model({}, calls))
    assert len(calls) == 8
    assert again.results["naive"]["em"] == 0.5

    class Other(ScriptedChatModel):
        pass

    with pytest.raises(InputError, match=r"the rankings of 'naive' .*\(model was 'ScriptedChatModel' and is 'Other'"):
        run(tiny, tmp_path, answers=True, llm=Other())


def test_an_answer_that_does_not_come_is_told_and_asked_for_again(tiny: Path, tmp_path: Path) -> None:
    asked = [q["question"] for q in questions()]
    replies: dict[str, Any] = dict(zip(asked, ["Italy", "Holland", "Norway", "Russia"], strict=True))
    calls: list[str] = []
    broken = {**replies, asked[1]: ConnectionError("gone")}
    found = run(tiny, tmp_path, answers=True, llm=model(broken, calls))
    assert found.results["naive"]["em"] == 0.75
    [line] = found.undone
    assert line.startswith("naive: 1 questions were not answered, the first q1: ")
    calls.clear()
    assert run(tiny, tmp_path, answers=True, llm=model(replies, calls)).results["naive"]["em"] == 1.0
    assert calls == [asked[1]]


def test_questions_without_answers_are_not_asked(tmp_path: Path) -> None:
    unanswered = [{name: value for name, value in q.items() if name != "answer"} for q in questions()]
    with pytest.raises(InputError, match="come without answers"):
        run(write(tmp_path, unanswered), None, answers=True, llm=model({}, []))


# --- the published data -------------------------------------------------------------------------------------------


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """Fifteen questions of musique_train100 with the passages that they need, and some others."""
    folder = real("musique_train100")
    data = read_dataset(folder)
    asked = json.loads((folder / "musique_train100.json").read_text("utf-8"))[:15]
    docs = json.loads((folder / "openie_musique_train100.json").read_text("utf-8"))["docs"]
    needed = {int(i) for q in data.questions[:15] for i in q.gold}
    kept = [docs[n] for n in sorted(needed | set(range(100)))]
    return write(tmp_path / "short", asked, kept, name="short")


def test_a_part_of_musique(short: Path) -> None:
    found = run(short, None, "all")
    assert (found.questions, set(found.results)) == (15, set(METHODS))
    assert found.notes == []
    assert found.results["hybrid"]["recall@5"] > 0.5
    assert found.results["subgraph"]["oracle_recall"] > 0.8
    assert "2" in found.results["naive"]["per_hop"]
