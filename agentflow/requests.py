"""Requests from a file or from standard input, one at a time, whatever the size; the error for a bad line gives its number."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from .errors import BadRequestFile, UnfaithfulValue
from .values import MAX_VALUE_BYTES, to_json

DEFAULT_COLUMN = "request"


def read_requests(
    source: str | Path, column: str | None = None, *, texts: bool = True, stdin: IO[bytes] | None = None
) -> Iterator[Any]:
    """Yields the requests in order, read as they are needed.

    `*.csv` is a CSV file with a header (quoting as in RFC 4180, line breaks in quoted fields), `*.jsonl` or `*.ndjson`
    has a JSON value on each line, anything else, and `-` (standard input), is plain text with a request on each line;
    blank lines are passed over. `column` names the CSV column, by default `request`, or the member of each JSON object.
    Without it a JSON value is the request itself, whatever it is; but if they have to be `texts`, as the support agent's,
    an object's member `request` is. Raises BadRequestFile, with the number of the line where the bad record begins.
    """
    path = str(source)
    suffix = Path(path).suffix.lower()
    with _opened(path, stdin) as raw:
        lines = _Lines(path, raw)
        if suffix in (".jsonl", ".ndjson"):
            yield from _jsonl(lines, column or (DEFAULT_COLUMN if texts else None), texts)
        else:
            yield from (_csv if suffix == ".csv" else _lines)(lines, column or DEFAULT_COLUMN)


class _Lines:
    """Decoded lines with their numbers; where the current record begins is `start`."""

    def __init__(self, path: str, raw: IO[bytes]) -> None:
        self.path, self.raw, self.number, self.start = "standard input" if path == "-" else path, raw, 0, 1

    def __iter__(self) -> Iterator[str]:
        while line := self.raw.readline(MAX_VALUE_BYTES + 1):
            self.number += 1
            if len(line) > MAX_VALUE_BYTES:
                raise self.bad(f"is longer than {MAX_VALUE_BYTES:,} bytes", self.number)
            try:
                text = line.decode("utf-8-sig" if self.number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise self.bad(f"is not UTF-8 (byte {error.start + 1} of the line)", self.number) from error
            if "\0" in text:
                raise self.bad("contains a NUL character, which PostgreSQL cannot store", self.number)
            yield text

    def bad(self, why: str, line: int | None = None) -> BadRequestFile:
        return BadRequestFile(self.path, self.start if line is None else line, why)


@contextmanager
def _opened(path: str, stdin: IO[bytes] | None) -> Iterator[IO[bytes]]:
    if path == "-":
        yield stdin or sys.stdin.buffer
        return
    try:
        file = open(path, "rb")  # noqa: SIM115 (closed by the with below)
    except OSError as error:
        raise BadRequestFile(path, None, f"cannot be read ({error.strerror or error})") from error
    with file:
        yield file


def _csv(lines: _Lines, column: str) -> Iterator[str]:
    csv.field_size_limit(max(MAX_VALUE_BYTES, csv.field_size_limit()))  # Python's own is 131,072 characters
    reader = csv.reader(iter(lines), strict=True)
    header: list[str] | None = None
    while True:
        lines.start = reader.line_num + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            why = "a quote that is never closed swallows the lines after it"
            raise lines.bad(f"is not CSV ({error}); {why}") from error
        if record is None:
            break
        if header is None:
            header = record
            if header.count(column) != 1:
                named = ", ".join(map(repr, header)) or "none"
                raise lines.bad(f"has no column {column!r}, or several; it has {named:.500} (--column names another)")
        elif record:
            if len(record) != len(header):
                raise lines.bad(f"has {len(record)} fields, but the header has {len(header)}")
            yield _request(lines, record[header.index(column)])
    if header is None:
        raise lines.bad(f"is missing: an empty file has no column {column!r}", 1)


def _jsonl(lines: _Lines, column: str | None, texts: bool) -> Iterator[Any]:
    for text in lines:
        lines.start = lines.number
        if not text.strip():
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise lines.bad(f"is not JSON ({error})") from error
        if column and isinstance(value, dict):
            if column not in value:
                raise lines.bad(f"has no member {column!r} (--column names another)")
            value = value[column]
        if texts and not isinstance(value, str):
            raise lines.bad(f"has a value of type {type(value).__name__} where the request's text should be")
        yield _request(lines, value) if texts else _stored(lines, value)


def _lines(lines: _Lines, _column: str) -> Iterator[str]:
    for text in lines:
        if text.strip():
            yield text.rstrip("\r\n")


def _request(lines: _Lines, text: str) -> str:
    if not text.strip():
        raise lines.bad("contains an empty request")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise lines.bad("contains a lone surrogate, which is not text") from error
    if "\0" in text:
        raise lines.bad("contains a NUL character, which PostgreSQL cannot store")
    return text


def _stored(lines: _Lines, value: Any) -> Any:
    try:
        to_json(value, workflow="(new)", step="input")
    except UnfaithfulValue as error:
        raise lines.bad(f"cannot be stored ({error.path}: {error.reason})") from error
    return value
