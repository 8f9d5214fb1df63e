"""Scores of texts: by words and vectors in any script, and by small cross-encoders in real ONNX graphs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cross_encoder import ALL, BOTH, OVERLAP, QUANTISED, SUM, UNPOOLED, WEIGHTS, WORDS, write_cross_encoder
from hypothesis import given
from hypothesis import strategies as st

from graphrag_milvus import inference
from graphrag_milvus.embeddings import Embedder
from graphrag_milvus.errors import InputError, MissingDependencyError, SettingsError
from graphrag_milvus.retrieval import scorers
from graphrag_milvus.retrieval.scorers import CrossEncoder, LocalScorer
from graphrag_milvus.testing import HashingEmbeddings

NOT_A_NUMBER = "nothing = Sub (sums, sums)\n logits = Div (nothing, nothing)"
MARKS = 0.5 + 0.25 + 0.25  # [CLS] and both [SEP]
TEXTS = ["Euler", "Johann taught Daniel", "", "the Rhine", "Basel " * 7, "son of Johann"]


def total(*words: str) -> float:
    return MARKS + sum(WEIGHTS[WORDS.index(word)] for word in words)


# --- without a model ----------------------------------------------------------------------------------------------


def best(question: str, texts: list[str]) -> str:
    scores = LocalScorer().score(question, texts)
    assert scores.shape == (len(texts),) and scores.dtype == np.float64
    return texts[int(np.argmax(scores))]


@pytest.mark.parametrize(
    ("question", "texts", "expected"),
    [
        ("Who taught Euler?", ["Basel lies on the Rhine", "Johann taught Euler"], "Johann taught Euler"),
        ("Где родился Эйлер?", ["Рейн течёт в Базеле", "ЭЙЛЕР родился в Базеле"], "ЭЙЛЕР родился в Базеле"),
        ("谁教欧拉？", ["莱茵河流过巴塞尔", "约翰教欧拉"], "约翰教欧拉"),
        (
            "欧洲的首都",
            ["洲欧的都首", "欧洲有首都"],
            "欧洲有首都",
        ),  # not only the characters, also which are neighbours
        ("オイラーの先生は誰", ["ライン川はバーゼルを流れる", "オイラーの先生はヨハン"], "オイラーの先生はヨハン"),
        ("오일러의 스승", ["라인강은 바젤을 지난다", "오일러의 스승은 요한"], "오일러의 스승은 요한"),
        ("ใครสอนออยเลอร์", ["แม่น้ำไรน์ไหลผ่านบาเซิล", "โยฮันน์สอนออยเลอร์"], "โยฮันน์สอนออยเลอร์"),
        ("राम कौन है", ["रामायण एक ग्रंथ है", "राम राजा थे"], "राम राजा थे"),
        ("مَن علّم أويلر", ["يمر الراين ببازل", "علّم يوهان أويلر"], "علّم يوهان أويلر"),
        ("CAFE\u0301 Noir", ["Tea", "café"], "café"),  # composed or not
    ],
)
def test_the_text_that_shares_words_is_best_in_any_script(question: str, texts: list[str], expected: str) -> None:
    assert best(question, texts) == expected
    assert best(question, texts[::-1]) == expected


def test_a_word_counts_by_how_few_texts_have_it() -> None:
    texts = ["who was in the house", "Euler", "who was the first", "who was the second"]
    assert best("who was the teacher of Euler", texts) == "Euler"


def test_all_words_of_the_question_once_in_a_short_text_are_worth_more_than_one_of_them_often() -> None:
    assert best("Johann Euler", ["Euler " * 30, "Johann Euler", "Basel"]) == "Johann Euler"


def test_a_long_text_is_not_better_for_its_length() -> None:
    filler = " ".join(f"word{n}" for n in range(200))
    assert best("Euler", [f"Euler {filler}", "Euler taught", "Basel"]) == "Euler taught"


def test_vectors_decide_where_words_do_not() -> None:
    embedder = Embedder(HashingEmbeddings(64))
    texts = ["Bernoullis", "Rhine", "Bernoulli"]
    words = LocalScorer().score("the Bernoullian family", texts)
    assert not words.any()
    both = LocalScorer(embedder, weight=2.0).score("the Bernoullian family", texts)
    assert np.argmin(both) == 1
    assert both == pytest.approx(2.0 * (embedder.embed(texts) @ embedder.embed_one("the Bernoullian family")), abs=1e-6)


def test_nothing_to_score_and_nothing_to_score_by() -> None:
    assert LocalScorer().score("q", []).shape == (0,)
    assert LocalScorer().score("???", ["a", ""]).tolist() == [0.0, 0.0]
    assert LocalScorer().score("q", ["", ""]).tolist() == [0.0, 0.0]


@given(st.text(max_size=20), st.lists(st.text(max_size=20), min_size=1, max_size=8), st.randoms())
def test_any_text_has_a_score_from_0_to_1_that_does_not_depend_on_places(
    question: str, texts: list[str], random: Any
) -> None:
    scores = LocalScorer().score(question, texts)
    assert np.all((scores >= 0) & (scores <= 1 + 1e-12))
    order = random.sample(range(len(texts)), len(texts))
    assert np.allclose(LocalScorer().score(question, [texts[n] for n in order]), scores[order], rtol=0, atol=1e-12)


def test_another_process_gives_the_same_to_the_last_bit() -> None:
    question, texts = "who taught the son of Johann in Basel", ["Johann taught Euler", "the son of Johann", "in Basel"]
    code = (
        "import sys, json; from graphrag_milvus.retrieval.scorers import LocalScorer\n"
        "print(json.dumps(LocalScorer().score(*json.loads(sys.argv[1])).tolist()))"
    )
    given = json.dumps([question, texts])
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run([sys.executable, "-c", code, given], capture_output=True, check=True, env=environment)
    assert json.loads(done.stdout) == LocalScorer().score(question, texts).tolist()


# --- a cross-encoder ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", [("input_ids", "attention_mask"), ("input_ids", "attention_mask", "token_type_ids")])
@pytest.mark.parametrize("kind", ["int64", "int32"])
def test_question_and_text_are_read_as_one_pair(inputs: tuple[str, ...], kind: str, tmp_path: Path) -> None:
    model = CrossEncoder(write_cross_encoder(tmp_path, inputs=inputs, kind=kind))
    scores = model.score("Daniel", TEXTS)
    assert scores.dtype == np.float64
    assert scores.tolist() == [
        total("daniel", "euler"),
        total("daniel", "johann", "taught", "daniel"),
        total("daniel"),
        total("daniel", "rhine"),
        total("daniel", *["basel"] * 7),
        total("daniel", "son", "of", "johann"),
    ]


def test_the_text_has_a_token_type_of_its_own(tmp_path: Path) -> None:
    model = CrossEncoder(write_cross_encoder(tmp_path, OVERLAP, inputs=ALL))
    texts = ["Basel", "Johann taught", "Daniel son of Johann", "Johann Johann Johann"]
    assert model.score("Johann taught Daniel", texts).tolist() == [1.0, 3.0, 3.0, 4.0]


def test_the_second_of_two_classes_is_the_one_that_fits(tmp_path: Path) -> None:
    opposite = [-weight / 2 for weight in WEIGHTS]
    model = CrossEncoder(write_cross_encoder(tmp_path, columns=[opposite, WEIGHTS]))
    assert model.score("Daniel", ["Euler", "Rhine"]).tolist() == [
        1.5 * total("daniel", "euler"),
        1.5 * total("daniel", "rhine"),
    ]


def test_one_number_a_pair_without_a_second_axis(tmp_path: Path) -> None:
    flat = (
        SUM.replace("logits =", "column =") + "axis = Constant <value_ints = [1]> ()\n logits = Squeeze (column, axis)"
    )
    folder = write_cross_encoder(tmp_path, flat)
    assert CrossEncoder(folder).score("Daniel", ["Euler"]).tolist() == [total("daniel", "euler")]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_a_score_does_not_depend_on_the_texts_beside_it(batch_size: int, tmp_path: Path) -> None:
    texts = TEXTS * 9 + ["Basel " * 400]
    model = CrossEncoder(write_cross_encoder(tmp_path), batch_size=batch_size)
    assert model.score("Daniel", texts).tolist() == [float(model.score("Daniel", [text])[0]) for text in texts]


def test_a_model_that_quantises_its_activations_gets_one_pair_at_a_time(tmp_path: Path) -> None:
    model = CrossEncoder(write_cross_encoder(tmp_path, QUANTISED))
    texts = ["Euler", "Basel", "Johann", "of"]
    assert model.score("Daniel", texts).tolist() == [float(model.score("Daniel", [text])[0]) for text in texts]
    loaded = model._load()
    together = loaded.scores(loaded.pairs("Daniel", texts))
    assert together.tolist() != model.score("Daniel", texts).tolist()  # it matters


def test_the_end_of_the_text_is_cut_and_never_the_question(tmp_path: Path) -> None:
    model = CrossEncoder(write_cross_encoder(tmp_path), max_tokens=8)
    scores = model.score("son of Johann", ["Euler", "Euler Daniel", "Euler Daniel Basel Rhine Basel"])
    question = ("son", "of", "johann")
    assert scores.tolist() == [total(*question, "euler")] + 2 * [total(*question, "euler", "daniel")]


def test_a_question_that_leaves_room_for_one_token_and_one_that_leaves_none(tmp_path: Path) -> None:
    model = CrossEncoder(write_cross_encoder(tmp_path), max_tokens=8)
    assert model.score("son of Johann Daniel", ["Euler Basel"]).tolist() == [
        total("son", "of", "johann", "daniel", "euler")
    ]
    with pytest.raises(InputError, match=r"the question has 5 tokens .* reads 8.*ask a shorter one"):
        model.score("son of Johann Daniel Euler", ["Basel"])


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({}, 512),
        ({"config.json": {"max_position_embeddings": 32}}, 32),
        ({"config.json": {"max_position_embeddings": 8194}}, 512),
        ({"tokenizer_config.json": {"model_max_length": 64}, "config.json": {"max_position_embeddings": 128}}, 64),
        ({"tokenizer_config.json": {"model_max_length": 1e30}}, 512),
        ({"tokenizer_config.json": {"model_max_length": None}, "config.json": {}}, 512),
    ],
)
def test_the_folder_says_how_many_tokens_are_read(files: dict[str, Any], most: int, tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path)
    for name, values in files.items():
        (tmp_path / name).write_text(json.dumps(values))
    [score] = CrossEncoder(folder).score("Daniel", ["Euler " * 9_000])
    assert score == total("daniel", *["euler"] * (most - 4))


@pytest.mark.parametrize("name", ["model.onnx", "onnx/model.onnx", "model_quantized.onnx", "onnx/model_quantized.onnx"])
def test_where_exports_put_the_graph(name: str, tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path / "a folder", name=name)
    assert CrossEncoder(folder).score("Daniel", ["Euler"]).tolist() == [total("daniel", "euler")]


def test_texts_of_any_kind(tmp_path: Path) -> None:
    model = CrossEncoder(write_cross_encoder(tmp_path))
    texts = ["", "\ud800", "\0", "🎈", " \n" * 50_000 + "Euler", "x" * 1_000_000]
    expected = [total(), total(), total(), total(), total("euler"), total()]  # what is unknown weighs nothing
    assert model.score("", texts).tolist() == expected
    assert model.score("\ud800", ["Euler"]).tolist() == [total("euler")]


def test_without_texts_nothing_is_loaded() -> None:
    assert CrossEncoder("/no/such/folder").score("q", []).shape == (0,)


def test_threads_share_one_model_that_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, loads, load = CrossEncoder(write_cross_encoder(tmp_path)), [], scorers._loaded

    def counted(*given: Any) -> Any:
        loads.append(given)
        return load(*given)

    monkeypatch.setattr(scorers, "_loaded", counted)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda word: model.score(word, TEXTS).tolist(), ["Euler", "Daniel"] * 16))
    assert len(loads) == 1
    assert found == [model.score(word, TEXTS).tolist() for word in ("Euler", "Daniel")] * 16


# --- folders that are none ----------------------------------------------------------------------------------------


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"retrieval.cross_encoder='.*nowhere' is no folder"):
        CrossEncoder(str(tmp_path / "nowhere")).score("q", ["t"])


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f: (f / "model.onnx").unlink(), "has no model.onnx or onnx/model.onnx"),
        (lambda f: (f / "tokenizer.json").unlink(), "has no tokenizer.json; export"),
        (lambda f: (f / "model.onnx").write_bytes(b"no graph"), "cannot be loaded"),
        (lambda f: _truncate(f / "model.onnx"), "cannot be loaded"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "cannot be loaded"),
        (lambda f: (f / "tokenizer.json").write_bytes(b"\xff\xfe"), "cannot be loaded"),
        (lambda f: (f / "config.json").write_text("{"), "config.json' of the cross-encoder cannot be read"),
        (lambda f: (f / "config.json").write_text("[]"), "config.json' of the cross-encoder holds a list"),
    ],
)
def test_what_a_folder_lacks_is_named(spoil: Callable[[Path], object], said: str, tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path)
    spoil(tmp_path)
    with pytest.raises(SettingsError, match=said):
        CrossEncoder(folder).score("q", ["t"])


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"columns": [WEIGHTS] * 3}, r"shape \(2, 3\) for 2 pairs; a cross-encoder gives one or two"),
        ({"nodes": UNPOOLED}, r"shape \(2, 5, 1\) for 2 pairs"),
        ({"nodes": SUM.replace("logits", "sums") + NOT_A_NUMBER}, "not finite"),
        ({"inputs": (*BOTH, "pixels")}, r"wants .*pixels.*; only integers"),
        ({"inputs": ("attention_mask", "ids"), "nodes": SUM.replace("input_ids", "ids")}, "only integers for"),
        ({"outputs": ("one", "wide"), "nodes": SUM.replace("logits", "last")}, "a cross-encoder gives logits"),
    ],
)
def test_a_graph_that_is_no_cross_encoder_is_named(written: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path, **written)
    with pytest.raises(SettingsError, match=said):
        CrossEncoder(folder).score("Daniel", ["Euler", "Basel"])


def test_a_tokenizer_that_does_not_belong_to_the_graph(tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path, columns=[WEIGHTS])
    tokens = json.loads((tmp_path / "tokenizer.json").read_text())
    tokens["model"]["vocab"]["euler"] = 5_000
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(SettingsError, match=r"failed: .*use another model"):
        CrossEncoder(folder).score("Daniel", ["Euler"])


@pytest.mark.parametrize("absent", ["onnxruntime", "tokenizers"])
def test_without_the_extra_it_is_named(absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, present = write_cross_encoder(tmp_path), inference.find_spec
    monkeypatch.setattr(inference, "find_spec", lambda name: None if name == absent else present(name))
    with pytest.raises(MissingDependencyError, match=rf'needs {absent}; pip install "graphrag-milvus\[local\]"'):
        CrossEncoder(folder).score("q", ["t"])
