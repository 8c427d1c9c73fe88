"""Strict JSON documents: files written whole or not at all, and objects that are read with the place of what is wrong."""

from __future__ import annotations

import gzip
import io
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from remat.errors import IllFormed, MalformedFile
from remat.units import Bytes, GiB, MiB, format_bytes

T = TypeVar("T")

LARGEST_FILE: Bytes = GiB
"""Most bytes of a file that are read, unzipped: a graph of 100,000 nodes takes a tenth of that."""


# -- files -------------------------------------------------------------------------------------------------------------


def write_whole(path: str | os.PathLike[str], text: bytes) -> None:
    """Write a file, whole or not at all; gzipped when its name ends in `.gz`."""
    path = Path(path)
    raw = gzip.compress(text, mtime=0) if path.suffix == ".gz" else text
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        # with the rights that the user's umask gives; `tempfile` gives its owner alone any
        with open(partial, "xb") as file:
            file.write(raw)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def read_unzipped(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file, unzipped where it is gzipped.

    Raises:
        MalformedFile: F-GZIP; F-SIZE; OSError when the file cannot be read.
    """
    with open(path, "rb") as file:
        raw = _at_most(file)
    return unzipped(raw) if raw[:2] == b"\x1f\x8b" else raw


def unzipped(raw: bytes) -> bytes:
    """The contents of a gzip file.

    Raises:
        MalformedFile: F-GZIP, when it is not a whole one; F-SIZE, when they are more than `LARGEST_FILE`.
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
            return _at_most(cast(IO[bytes], file))
    except (OSError, EOFError, ValueError, gzip.zlib.error) as error:  # type: ignore[attr-defined]
        what = f"not a whole gzip file ({error})."
        raise MalformedFile("F-GZIP", what, where="the file", fix="copy it again.") from error


def _at_most(file: IO[bytes]) -> bytes:
    """What a file holds, up to `LARGEST_FILE`."""
    chunks: list[bytes] = []
    size = 0
    while chunk := file.read(MiB):
        size += len(chunk)
        if size > LARGEST_FILE:
            what = f"more than {format_bytes(LARGEST_FILE)}: no graph, schedule, plan or proof is so large."
            raise MalformedFile("F-SIZE", what, where="the file", fix="look at what it is.")
        chunks.append(chunk)
    return b"".join(chunks)


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Within the block, an error of what a file holds says which file it is, before the place in it."""
    try:
        yield
    except MalformedFile as error:
        what = error.what.removeprefix(f"at {error.where}: ")
        raise MalformedFile(error.rule, what, where=f"{os.fspath(path)}, {error.where}", fix=error.fix) from error


def as_text(raw: bytes | str) -> str:
    """UTF-8 text.

    Raises:
        MalformedFile: F-UTF8.
    """
    if isinstance(raw, str):
        return raw
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        fix = "save it as UTF-8."
        raise MalformedFile("F-UTF8", "not UTF-8 text.", where=f"byte {error.start}", fix=fix) from error


def parse_json(text: str) -> Any:
    """The document of a JSON text; keys that stand twice and numbers that JSON has not are refused.

    Raises:
        MalformedFile: F-JSON, F-KEY, F-TYPE.
    """
    try:
        return json.loads(text, object_pairs_hook=_no_twins, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise MalformedFile("F-JSON", f"not JSON: {error.msg}.", where=where, fix="write it again, whole.") from error
    except RecursionError as error:
        fix = "write one of the documented forms."
        raise MalformedFile("F-JSON", "nested too deep.", where="$", fix=fix) from error
    except ValueError as error:  # an integer of more digits than Python converts
        raise MalformedFile("F-JSON", f"not JSON: {error}.", where="$", fix="write numbers below 2^63.") from error


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        fix = "write each key once."
        raise MalformedFile("F-KEY", f"the key {twice!r} stands twice in one object.", where="$", fix=fix)
    return table


def _no_constant(text: str) -> Any:
    raise MalformedFile("F-TYPE", f"{text} is not a number of JSON.", where="$", fix="write whole numbers.")


# -- objects -----------------------------------------------------------------------------------------------------------


class JsonObject:
    """A JSON object under reading: knows where it stands, refuses unknown keys, checks types.

    Args:
        value: what should be an object.
        where: its place in the document.
        keys: those it may have.
    """

    def __init__(self, value: Any, where: str, keys: set[str]) -> None:
        if not isinstance(value, dict):
            raise MalformedFile("F-TYPE", f"{value!r:.60} is not an object.", where=where, fix="write an object here.")
        if not keys.issuperset(value):
            unknown = sorted(set(value) - keys)
            fix = f"known keys are {', '.join(sorted(keys))}."
            raise MalformedFile("F-KEY", f"unknown key {unknown[0]!r:.80}.", where=where, fix=fix)
        self.value = value
        self.where = where

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The value of a key, of this type; without a default the key must be there."""
        if key not in self.value:
            if default is not None:
                return default
            raise MalformedFile("F-KEY", f"the key {key!r} is missing.", where=self.where, fix="add it.")
        value = self.value[key]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            what = f"{value!r:.60} is not {kind.__name__}."
            fix = f"write a value of type {kind.__name__}."
            raise MalformedFile("F-TYPE", what, where=f"{self.where}.{key}", fix=fix)
        return value

    def each(self, key: str, read: Callable[[Any, str], T], default: list[Any] | None = None) -> list[T]:
        """What `read(item, place)` makes of each item of a list."""
        values = self.get(key, list, default)
        return [read(value, f"{self.where}.{key}[{i}]") for i, value in enumerate(values)]

    def names(self, key: str) -> tuple[str, ...]:
        """A list that may be left out, unchecked: who is born of it checks."""
        return tuple(self.get(key, list)) if key in self.value else ()


def born(where: str, make: Callable[[], T]) -> T:
    """What `make` makes; a rule of values that it breaks is said with the place in the document."""
    try:
        return make()
    except IllFormed as error:
        raise MalformedFile(error.rule, error.what, where=where, fix=error.fix) from error


__all__ = ["JsonObject", "as_text", "born", "naming", "parse_json", "read_unzipped", "write_whole"]
