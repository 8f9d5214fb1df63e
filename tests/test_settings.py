"""Settings from arguments, the environment, `.env`, a TOML file and OPENAI_*; mistakes are named, secrets are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from graphrag_milvus.errors import SettingsError
from graphrag_milvus.settings import LLMSettings, MilvusSettings, load_settings


def test_defaults() -> None:
    settings = load_settings()
    assert settings.milvus.uri == "./graphrag_milvus.db"
    assert settings.milvus.embedded
    assert settings.workspace == "default"
    assert settings.embedding.provider == "auto"
    assert (settings.llm.model, settings.llm.concurrency, settings.llm.timeout, settings.llm.max_retries) == (
        None,
        8,
        60.0,
        5,
    )
    assert (settings.retrieval.method, settings.retrieval.top_k, settings.retrieval.degree) == ("auto", 5, 1)


def test_the_environment_is_read_with_its_nested_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHRAG_MILVUS__URI", "http://localhost:19530")
    monkeypatch.setenv("GRAPHRAG_WORKSPACE", "知识库")
    monkeypatch.setenv("GRAPHRAG_RETRIEVAL__TOP_K", "7")
    monkeypatch.setenv("GRAPHRAG_LLM__CONCURRENCY", "2")
    settings = load_settings()
    assert settings.milvus.uri == "http://localhost:19530"
    assert not settings.milvus.embedded
    assert (settings.workspace, settings.retrieval.top_k, settings.llm.concurrency) == ("知识库", 7, 2)


def test_openai_names_stand_in_where_ours_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-theirs")
    monkeypatch.setenv("OPENAI_MODEL", "theirs")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("GRAPHRAG_LLM__MODEL", "ours")
    llm = load_settings().llm
    assert (llm.model, llm.base_url) == ("ours", "http://127.0.0.1:1/v1")
    assert llm.api_key == SecretStr("sk-theirs")


def test_each_source_wins_over_those_after_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "graphrag_milvus.toml").write_text(
        'workspace = "toml"\n[retrieval]\ntop_k = 1\ndegree = 2\ncandidates = 10\n', "utf-8"
    )
    (tmp_path / ".env").write_text("GRAPHRAG_RETRIEVAL__DEGREE=3\nGRAPHRAG_RETRIEVAL__TOP_K=2\n", "utf-8")
    monkeypatch.setenv("GRAPHRAG_RETRIEVAL__TOP_K", "4")
    settings = load_settings(milvus={"uri": "given.db"})
    assert settings.milvus.uri == "given.db"
    assert (settings.retrieval.top_k, settings.retrieval.degree, settings.retrieval.candidates) == (4, 3, 10)
    assert settings.workspace == "toml"


def test_a_toml_file_by_name(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('workspace = "mine"\n', "utf-8")
    assert load_settings(tmp_path / "mine.toml").workspace == "mine"
    assert load_settings().workspace == "default"
    with pytest.raises(SettingsError, match=r"nowhere\.toml"):
        load_settings(tmp_path / "nowhere.toml")


def test_a_broken_toml_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("workspace = \n", "utf-8")
    with pytest.raises(SettingsError, match=r"broken\.toml"):
        load_settings(tmp_path / "broken.toml")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GRAPHRAG_RETRIEVAL__TOP_K", "many"),
        ("GRAPHRAG_RETRIEVAL__METHOD", "magic"),
        ("GRAPHRAG_LLM__TIMEOUT", "-1"),
        ("GRAPHRAG_MILVUS__URL", "typo.db"),
    ],
)
def test_a_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as error:
        load_settings()
    assert value in str(error.value)
    assert name.rsplit("__", maxsplit=1)[-1].lower() in str(error.value)


def test_secrets_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHRAG_MILVUS__TOKEN", "root:secret")
    monkeypatch.setenv("GRAPHRAG_LLM__API_KEY", "sk-secret")
    monkeypatch.setenv("GRAPHRAG_LLM__CONCURRENCY", "none")
    with pytest.raises(SettingsError) as error:
        load_settings()
    assert "secret" not in str(error.value)
    monkeypatch.delenv("GRAPHRAG_LLM__CONCURRENCY")
    assert "secret" not in repr(load_settings())


def test_settings_can_be_changed_and_are_checked_then() -> None:
    settings = load_settings()
    settings.milvus = MilvusSettings(uri="other.db")
    settings.llm = LLMSettings(model="m")
    assert settings.milvus.uri == "other.db"
    with pytest.raises(ValueError, match="concurrency"):
        settings.llm.concurrency = 0
