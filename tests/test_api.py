"""What users import: pinned, so that a change is a decision. And what the README says: run."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import graphrag_milvus
from graphrag_milvus import errors
from graphrag_milvus.types import content_hash, content_id, entity_id, normalize_name

README = Path(__file__).parent.parent / "README.md"


def test_the_top_level_names() -> None:
    assert sorted(graphrag_milvus.__all__) == [
        "Answer",
        "Document",
        "GraphRAG",
        "GraphRAGError",
        "IndexReport",
        "Passage",
        "Relation",
        "Retrieval",
        "Settings",
        "Trace",
        "__version__",
        "load_settings",
    ]


def test_every_module_says_what_is_public_and_has_it() -> None:
    for found in pkgutil.walk_packages(graphrag_milvus.__path__, "graphrag_milvus."):
        if found.name.endswith("__main__"):
            continue
        module = importlib.import_module(found.name)
        assert module.__doc__, found.name
        if not found.ispkg:
            assert all(hasattr(module, name) for name in module.__all__), found.name


def test_the_error_tree_is_the_one_that_is_drawn() -> None:
    classes = [name for name in errors.__all__ if name[0].isupper()]
    assert all(issubclass(getattr(errors, name), errors.GraphRAGError) for name in classes)
    drawn = re.findall(r"[├└]── (\w+)", errors.__doc__ or "")
    assert sorted([*drawn, "GraphRAGError"]) == sorted(classes)


@pytest.mark.parametrize(
    "spellings",
    [
        ("ACME Corp", "Acme corp.", "ＡＣＭＥ Corp", "ACME  Corp", " acme\tcorp\n", "ACME\u00a0Corp"),
        ("Straße", "STRASSE"),
        ("Beyoncé", "Beyonce\u0301", "BEYONCÉ"),
        ("Москва", "МОСКВА"),
    ],
)
def test_spellings_of_one_name_are_one_entity(spellings: tuple[str, ...]) -> None:
    assert len({entity_id(name) for name in spellings}) == 1


def test_names_that_differ_stay_apart() -> None:
    names = [
        "C",
        "C++",
        "C#",
        "-40",
        "40",
        "爱因斯坦",
        "爱因斯",
        "Москва",
        "Beyoncé",
        "Beyonce",
        ".NET",
        "NET",
        "Yahoo!",
        "Yahoo",
    ]
    assert len({entity_id(name) for name in names}) == len(names)
    assert normalize_name("...") == "..."
    assert entity_id("Java", "Island") != entity_id("Java", "Language")


def test_ids_are_content_and_fit_63_bits() -> None:
    assert content_hash("a", "bc") != content_hash("ab", "c")
    assert content_id("passage", "x") == content_id("passage", "x")
    assert all(0 <= content_id(str(n)) < 2**63 for n in range(1_000))
    # Pinned: another number would orphan every row that users have stored.
    assert entity_id("Leonhard Euler") == ENTITY


ENTITY = 7596829607563672675


@pytest.mark.usefixtures("local_extra")
def test_python_in_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert "Daniel Bernoulli" in capsys.readouterr().out


def test_the_readme_names_the_commands_that_exist() -> None:
    from graphrag_milvus.cli import app

    commands = {command.callback.__name__ for command in app.registered_commands if command.callback}
    named = set(re.findall(r"^\| `(\w+)", README.read_text("utf-8"), re.MULTILINE))
    assert commands <= named
