"""Settings from arguments, the environment (`GRAPHRAG_...`), a `.env` file or a TOML file.

Nested values are written with two underscores: `GRAPHRAG_MILVUS__URI`, `GRAPHRAG_LLM__MODEL`.
The model's `OPENAI_API_KEY`, `OPENAI_BASE_URL` and `OPENAI_MODEL` are read too, after those.
"""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from graphrag_milvus.errors import SettingsError

__all__ = [
    "CacheSettings",
    "EmbeddingSettings",
    "IndexSettings",
    "LLMSettings",
    "MilvusSettings",
    "RetrievalSettings",
    "Settings",
    "load_settings",
]


_config_file: ContextVar[Path] = ContextVar("config_file", default=Path("graphrag_milvus.toml"))


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class MilvusSettings(_Group):
    """Where the collections live."""

    uri: str = "./graphrag_milvus.db"
    token: SecretStr | None = None
    database: str = "default"
    timeout: float = Field(default=60.0, gt=0, description="seconds for one request")
    connect_timeout: float = Field(default=10.0, gt=0, description="seconds to reach the server")
    batch_size: int = Field(
        default=500, ge=1, le=16_384, description="rows in one upsert; 500 is the best on both embedded engines"
    )

    @property
    def embedded(self) -> bool:
        """True for a Milvus Lite file, False for a server."""
        return "://" not in self.uri


class EmbeddingSettings(_Group):
    """Which embedder makes the vectors. See `graphrag_milvus.embeddings.make_embeddings`."""

    provider: str = Field(default="auto", description="auto, local, openai, or an import path 'package.module:Class'")
    model: str | None = None
    base_url: str | None = None
    api_key: SecretStr | None = None
    dimension: int | None = Field(default=None, ge=1, le=32_768)
    batch_size: int = Field(default=64, ge=1)
    threads: int = Field(default=0, ge=0, description="threads of the local model; 0 means one per core")
    price: float | None = Field(default=None, ge=0, description="of a million tokens, for estimates")


class LLMSettings(_Group):
    """An OpenAI-compatible chat model; without a model everything that can work without one does."""

    model: str | None = None
    base_url: str | None = None
    api_key: SecretStr | None = None
    temperature: float | None = 0.0
    concurrency: int = Field(default=8, ge=1)
    timeout: float = Field(default=60.0, gt=0, description="seconds for one request")
    max_retries: int = Field(default=5, ge=0)
    price_in: float | None = Field(default=None, ge=0, description="of a million tokens of prompts, for estimates")
    price_out: float | None = Field(default=None, ge=0, description="of a million tokens of replies, for estimates")


class IndexSettings(_Group):
    """How documents become passages and relations."""

    extractor: str = Field(default="auto", description="auto, given, local, llm, or several joined by +")
    splitter: Literal["auto", "length", "outline", "pattern", "meaning"] = Field(
        default="auto", description="where passages end; auto: by the outline where a text has one, else by length"
    )
    split_pattern: str = Field(default="", description="for splitter=pattern: matches where a passage begins")
    numbered_headings: bool = Field(default=False, description="lines such as '2.1 Methods' are headings too")
    passage_size: int = Field(default=1_200, ge=50, le=16_000, description="size of one passage at the most")
    size_unit: Literal["characters", "tokens"] = Field(
        default="characters", description="what passage_size counts; tokens are those of the embedding model"
    )
    enrich: str = Field(
        default="", description="title, summary, questions or some of them by commas: what a model writes for search"
    )
    spacy_model: str = "en_core_web_sm"
    window: int = Field(default=256, ge=1, description="documents that are in work, and in memory, at once")


class CacheSettings(_Group):
    """What indexing remembers of chat models and embedders, so that nothing is paid for twice."""

    enabled: bool = True
    folder: str | None = Field(
        default=None, description="on a disk of this machine; beside the Lite file, or else in the user's cache folder"
    )
    max_mb: int = Field(default=4_096, ge=1, description="MiB at the most; what was not used for longest goes first")


class RetrievalSettings(_Group):
    """How a question becomes passages."""

    method: Literal["auto", "naive", "hybrid", "subgraph", "kg2rag", "ppr"] = "auto"
    top_k: int = Field(default=5, ge=0)
    degree: int = Field(default=1, ge=0, le=8, description="how far seeds are expanded")
    entity_seeds: int = Field(default=3, ge=0, description="entities taken for each name in the question")
    relation_seeds: int = Field(default=10, ge=0, description="relations taken for the whole question")
    entity_threshold: float = Field(default=0.5, ge=-1, le=1, description="least cosine for a similar entity name")
    candidates: int = Field(default=300, ge=1, le=16_384, description="relations shown to the reranker at the most")
    selected: int = Field(default=10, ge=1, description="relations that the reranker may select")
    prompt_tokens: int = Field(default=3_000, ge=1, description="tokens of a reranker's prompt at the most")
    rerank: Literal["none", "local", "cross-encoder", "model"] = Field(
        default="none", description="what puts the passages that a method found in a better order"
    )
    rerank_passages: int = Field(default=20, ge=1, le=16_384, description="passages that are reranked; k if larger")
    cross_encoder: str | None = Field(
        default=None, description="folder of an ONNX cross-encoder, which then also scores the trees of kg2rag"
    )


class _OpenAIEnvironment(PydanticBaseSettingsSource):
    """The model's settings under the names that OpenAI's own clients read."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        names = {name: os.environ.get(f"OPENAI_{name.upper()}") for name in ("api_key", "base_url", "model")}
        found = {name: value for name, value in names.items() if value}
        return {"llm": found} if found else {}


class Settings(BaseSettings):
    """All settings of one `GraphRAG`."""

    model_config = SettingsConfigDict(
        env_prefix="GRAPHRAG_",
        env_nested_delimiter="__",
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        validate_assignment=True,
    )

    workspace: str = "default"
    milvus: MilvusSettings = MilvusSettings()
    embedding: EmbeddingSettings = EmbeddingSettings()
    llm: LLMSettings = LLMSettings()
    index: IndexSettings = IndexSettings()
    retrieval: RetrievalSettings = RetrievalSettings()
    cache: CacheSettings = CacheSettings()

    @property
    def cache_folder(self) -> Path:
        """Where the cache is: as set, or beside the Lite file, or for a server in the user's cache folder."""
        if self.cache.folder:
            return Path(self.cache.folder).expanduser()
        if self.milvus.embedded:
            return Path(self.milvus.uri).expanduser().parent / ".graphrag_milvus_cache"
        return _user_cache() / "graphrag-milvus"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, the environment, `.env`, the TOML file, `OPENAI_*`: each wins over those after it."""
        toml = TomlConfigSettingsSource(settings_cls, _config_file.get())
        return init_settings, env_settings, dotenv_settings, toml, _OpenAIEnvironment(settings_cls)


def _user_cache() -> Path:
    """Where the system wants caches of this user to be."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def load_settings(config: str | Path | None = None, **overrides: Any) -> Settings:
    """Settings from everywhere, `overrides` first; a wrong one is a `SettingsError` that names it.

    Args:
        config: a TOML file to read in place of `./graphrag_milvus.toml`.
        overrides: top-level fields of `Settings`, as values or as dicts of a group.
    """
    if config is not None and not Path(config).is_file():
        raise SettingsError(f"settings file {str(config)!r} does not exist; give the path of a TOML file")
    token = _config_file.set(_config_file.get() if config is None else Path(config))
    try:
        return Settings(**overrides)
    except ValueError as error:
        raise SettingsError(_said(error, _config_file.get())) from None
    finally:
        _config_file.reset(token)


def _said(error: ValueError, config: Path) -> str:
    """What is wrong with which setting, without the values of secrets."""
    if not isinstance(error, ValidationError):
        return f"settings file {str(config)!r} is not TOML: {error}"
    problems = [
        f"{'.'.join(str(part) for part in e['loc'])}={e['input']!r}: {e['msg']}"
        for e in error.errors()
        if not {"api_key", "token"}.intersection(e["loc"])
    ]
    return f"settings not usable: {'; '.join(problems) or 'a secret is malformed'}"
