"""Requests from files and streams: read exactly, one at a time, and a bad line is named."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from agentflow.errors import BadRequestFile
from agentflow.requests import read_requests

DATA = Path(__file__).resolve().parents[2] / "data" / "support_requests.csv"


def file(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def test_the_project_s_own_requests_are_read_exactly() -> None:
    with DATA.open(encoding="utf-8", newline="") as stream:
        expected = [row["request"] for row in csv.DictReader(stream)]
    assert list(read_requests(DATA)) == expected
    assert len(expected) > 400 and any("\n" in request for request in expected)


def test_csv_quotes_commas_and_line_breaks_survive(tmp_path: Path) -> None:
    path = file(
        tmp_path, "a.csv", b'\xef\xbb\xbfid,request\r\n1,"He said ""no"", twice\r\nand left"\r\n\r\n2,plain\r\n'
    )
    assert list(read_requests(path)) == ['He said "no", twice\r\nand left', "plain"]


def test_another_column_is_read_when_named(tmp_path: Path) -> None:
    assert list(read_requests(file(tmp_path, "a.csv", b"text,request\nmine,other\n"), "text")) == ["mine"]
    assert list(read_requests(file(tmp_path, "a.jsonl", b'{"text": "mine"}\n'), "text")) == ["mine"]


def test_jsonl_takes_objects_and_texts(tmp_path: Path) -> None:
    path = file(tmp_path, "a.jsonl", b'{"request": "one\\ntwo", "more": 1}\n\n"three"\n')
    assert list(read_requests(path)) == ["one\ntwo", "three"]


def test_jsonl_of_ones_own_workflow_takes_any_value_whole(tmp_path: Path) -> None:
    path = file(tmp_path, "a.jsonl", b'{"request": "late", "total": 3}\n7\nnull\n""\n[1]\n')
    assert list(read_requests(path, texts=False)) == [{"request": "late", "total": 3}, 7, None, "", [1]]


def test_a_named_member_is_the_input_whatever_it_is(tmp_path: Path) -> None:
    path = file(tmp_path, "a.jsonl", b'{"order": {"total": 3}}\n')
    assert list(read_requests(path, "order", texts=False)) == [{"total": 3}]
    with pytest.raises(BadRequestFile, match="no member 'other'"):
        list(read_requests(path, "other", texts=False))


@pytest.mark.parametrize("bad", ['{"total": NaN}', '"a\\u0000b"', "[1e999]", '{"a": "\\ud800"}'])
def test_a_value_that_cannot_be_stored_is_named_by_its_line(tmp_path: Path, bad: str) -> None:
    with pytest.raises(BadRequestFile, match=r"line 2, cannot be stored \(\$"):
        list(read_requests(file(tmp_path, "a.jsonl", f"1\n{bad}\n".encode()), texts=False))


def test_standard_input_is_a_request_a_line() -> None:
    stream = io.BytesIO('a, "b"\r\n\n \nç\n'.encode() + b"last")
    assert list(read_requests("-", stdin=stream)) == ['a, "b"', "ç", "last"]


@pytest.mark.parametrize(
    ("name", "content", "line", "why"),
    [
        ("a.csv", b"", 1, "empty file"),
        ("a.csv", b"text\nx\n", 1, "no column 'request'"),
        ("a.csv", b'request\n"two\nlines"\nx,y\n', 4, "has 2 fields, but the header has 1"),
        ("a.csv", b'request\nfine\n"never closed\nand on\n', 3, "is not CSV"),
        ("a.csv", b'request\nfine\n""\n', 3, "empty request"),
        ("a.csv", b"request\nfine\n\xff\n", 3, "not UTF-8"),
        ("a.csv", b"request\nfine\na\0b\n", 3, "NUL"),
        ("a.jsonl", b'"fine"\n{"request": \n', 2, "is not JSON"),
        ("a.jsonl", b'"fine"\n{"other": "x"}\n', 2, "no member 'request'"),
        ("a.jsonl", b'{"request": 7}\n', 1, "has a value of type int where the request's text should be"),
        ("a.jsonl", b'"\\ud800"\n', 1, "lone surrogate"),
        ("a.jsonl", b'"fine"\n"a\\u0000b"\n', 2, "NUL"),
        ("a.txt", b"fine\n\xff\n", 2, "not UTF-8"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, name: str, content: bytes, line: int, why: str) -> None:
    with pytest.raises(BadRequestFile, match=why) as raised:
        list(read_requests(file(tmp_path, name, content)))
    assert raised.value.line == line
    assert f"line {line}," in str(raised.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(BadRequestFile, match=r"no-such-file\.csv cannot be read"):
        list(read_requests("no-such-file.csv"))


def test_lines_are_read_only_as_they_are_asked_for() -> None:
    class Endless(io.RawIOBase):
        given = 0

        def readline(self, size: int | None = -1, /) -> bytes:
            self.given += 1
            return b"again\n"

    stream = Endless()
    requests = read_requests("-", stdin=stream)  # type: ignore[arg-type]
    assert [next(requests) for _ in range(3)] == ["again"] * 3
    assert stream.given == 3


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory() -> None:
    with (
        open("/dev/zero", "rb") as endless,
        pytest.raises(BadRequestFile, match=r"line 1, is longer than 16,777,216 bytes"),
    ):
        list(read_requests("-", stdin=endless))
