"""Files that were cut at any byte, and folders that are something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphrag_milvus.errors import InputError
from graphrag_milvus.evaluation.rankings import Folder, Ranking


def ranking(n: int) -> Ranking:
    return Ranking(f"q{n}", f"Wie heißt {n}?", "naive", ["1", "2"], [0.5, 0.25], 1.5, {"total": 1.0}, notes=["é"])


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    rows = Folder(tmp_path).rankings("naive")
    assert rows.read() == {}
    with rows.appending() as file:
        file.write(ranking(1))
        assert rows.read() == {"q1": ranking(1)}  # at once
        file.write(ranking(2))
    with rows.appending() as file:
        file.write(ranking(3))
    assert rows.read() == {f"q{n}": ranking(n) for n in (1, 2, 3)}


def test_a_file_that_was_cut_at_any_byte_loses_its_last_line_alone(tmp_path: Path) -> None:
    rows = Folder(tmp_path).rankings("naive")
    with rows.appending() as file:
        file.write(ranking(1))
        file.write(ranking(2))
    whole = rows.path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first + 1, len(whole) - 1):
        rows.path.write_bytes(whole[:cut])
        assert set(rows.read()) == {"q1"}
        assert rows.path.read_bytes() == whole[:cut]  # to read changes nothing: another process may be writing
    with rows.appending():
        assert rows.path.read_bytes() == whole[:first]
    rows.path.write_bytes(whole[:-1])  # all of it but the end of the line
    assert set(rows.read()) == {"q1", "q2"}
    with rows.appending() as file:
        file.write(ranking(3))
    assert set(rows.read()) == {"q1", "q2", "q3"}


@pytest.mark.parametrize("line", ["[1]", "{}", '{"id": "q"}', "null", "text", '{"unknown": 1}', "\0" * 40])
def test_a_line_that_is_no_row_is_taken_out(tmp_path: Path, line: str) -> None:
    rows = Folder(tmp_path).rankings("naive")
    with rows.appending() as file:
        file.write(ranking(1))
    good = rows.path.read_bytes()
    rows.path.write_bytes(line.encode() + b"\n" + good)
    assert set(rows.read()) == {"q1"}
    with rows.appending():
        assert rows.path.read_bytes() == good


def test_a_folder_that_is_something_else(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert folder.read() == {}
    (tmp_path / "run.json").write_text("{", "utf-8")
    with pytest.raises(InputError, match="is not JSON"):
        folder.read()
    for content in ("[]", "{}", '{"format": 99}'):
        (tmp_path / "run.json").write_text(content, "utf-8")
        with pytest.raises(InputError, match="not of an evaluation"):
            folder.read()
    (tmp_path / "run.json").unlink()
    with folder.rankings("naive").appending() as file:
        file.write(ranking(1))
    with pytest.raises(InputError, match=r"no run\.json"):
        folder.read()
    file_in_the_way = Folder(tmp_path / "rankings" / "naive.jsonl")
    assert file_in_the_way.rankings("naive").read() == {}
    with pytest.raises(InputError, match="cannot write"), file_in_the_way.locked():
        pass
    with pytest.raises(InputError, match="cannot write"), file_in_the_way.rankings("naive").appending():
        pass


def test_what_is_written_is_whole(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "new" / "folder")
    with folder.locked():
        pass
    (folder.path / "run.lock").unlink(missing_ok=True)
    folder.write({"identity": {"dataset": "é"}})
    assert folder.read() == {"format": 1, "identity": {"dataset": "é"}}
    assert [path.name for path in folder.path.iterdir()] == ["run.json"]
    folder.write_report({"a": 1})
    assert json.loads((folder.path / "report.json").read_text("utf-8")) == {"a": 1}
