"""The output of ranks: which there is, a part of it, and lines that have certain words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.records.rank_output import Log, Output, logs_in, size_in_words
from airflow_elastic.core.state import RunState
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.views.cache import FRESH, Reader

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Entry, Store

#: The most bytes of an answer; the most of a line; the most lines found, and the characters of each.
MOST_BYTES, LONGEST_LINE, MOST_MATCHES, LONGEST_MATCH = 256 << 10, 64 << 10, 200, 500

#: The most bytes that a search reads: the newest ones.
MOST_SEARCHED = 64 << 20

_CHUNK = 1 << 20


def logs(reader: Reader) -> dict[str, Any]:
    """All output of a run: attempts with the newest first; in each, ranks that failed before the others.

    The `default` is what to show first: the rank that failed, if the newest attempt failed; else rank 0.
    """
    state, entries = reader.snapshot().state, _entries(reader)
    sizes = _sizes(entries)
    attempts: list[dict[str, Any]] = []
    for number in sorted({log.attempt for log in sizes}, reverse=True):
        failed = _failed(state, number)
        ranks = [
            {"rank": log.rank, "generation": log.generation, "bytes": size, "failed": log.rank == failed}
            for log, size in sizes.items()
            if log.attempt == number
        ]
        ranks.sort(key=lambda one: (not one["failed"], one["rank"], -one["generation"]))
        attempts.append({"number": number, "ranks": ranks})
    first = attempts[0] if attempts else None
    return {
        "attempts": attempts,
        "default": first and {"attempt": first["number"], "rank": first["ranks"][0]["rank"]},
    }


def text(
    reader: Reader,
    *,
    attempt: int,
    rank: int,
    generation: int | None = None,
    offset: int = -(64 << 10),
    limit: int = 64 << 10,
    q: str = "",
) -> dict[str, Any]:
    """A part of a rank's output.

    Args:
        reader: of the run.
        attempt: number of the attempt.
        rank: global rank.
        generation: of the attempt. Default: its newest one with output of the rank.
        offset: the first byte; below 0, so many bytes before the end, and then from the beginning of a line.
        limit: the most bytes, up to 256 KiB.
        q: text to search, in any case. Then `matches` has the lines with it, and where they begin.

    Returns:
        `offset` and `next` are the bytes where the text begins and where to go on; `size` is that of all output.

    Raises:
        InvalidInput: there is no such output.
    """
    entries = _entries(reader)
    found = [log for log in logs_in(entries) if (log.attempt, log.rank) == (attempt, rank)]
    if generation is not None:
        found = [log for log in found if log.generation == generation]
    if not found:
        raise InvalidInput(
            f"there is no output of rank {rank} in attempt {attempt}"
            + ("" if generation is None else f", generation {generation}")
        )
    log = found[-1]
    parts = Output(reader.store, log.key).parts(entries)
    size = sum(part.size for part in parts)
    limit = max(1, min(limit, MOST_BYTES))
    begin = max(0, size + offset) if offset < 0 else min(offset, size)
    data = _read(reader.store, parts, begin, min(limit, size - begin))
    if offset < 0 and begin > 0:
        skipped = data.find(b"\n") + 1
        begin, data = begin + skipped, data[skipped:]
    data = _whole(data) if begin + len(data) < size else _whole_letters(data)
    answer: dict[str, Any] = {
        "attempt": attempt,
        "rank": rank,
        "generation": log.generation,
        "offset": begin,
        "next": begin + len(data),
        "size": size,
        "text": _shortened(data.decode(errors="replace")),
    }
    if q:
        answer["matches"] = _matches(reader.store, parts, size, q)
    return answer


def _entries(reader: Reader) -> list[Entry]:
    return reader.kept("logs", lambda: reader.store.list(layout.LOGS), FRESH)


def _sizes(entries: Sequence[Entry]) -> dict[Log, int]:
    """The bytes of each output, with all its parts."""
    found = dict.fromkeys(logs_in(entries), 0)
    by_key = {log.key: log for log in found}
    for entry in entries:
        log = by_key.get(entry.key) or by_key.get(entry.key.rpartition(".")[0])
        if log is not None and layout.is_part(entry.key, log.key):
            found[log] += entry.size
    return found


def _failed(state: RunState, attempt: int) -> int | None:
    of = [one for one in state.attempts if one.number == attempt]
    return of[0].failure.rank if of and of[0].failure else None


def _read(store: Store, parts: Sequence[Entry], start: int, size: int) -> bytes:
    """Bytes of an output that may be in several objects."""
    found = bytearray()
    for part in parts:
        if start < part.size and len(found) < size:
            chunk = store.read_from(part.key, start, min(size - len(found), part.size - start))
            found += chunk
            if len(chunk) < min(size, part.size - start):  # cut meanwhile
                break
            start = 0
        else:
            start -= min(start, part.size)
    return bytes(found[:size])


def _whole(data: bytes) -> bytes:
    """Without a line that is not complete, if another one is; else without a letter that is not complete."""
    end = data.rfind(b"\n") + 1
    return data[:end] if end else _whole_letters(data)


def _whole_letters(data: bytes) -> bytes:
    """Without a last letter that is not complete: the rest of it is written next."""
    for cut in range(1, min(4, len(data))):
        if data[-cut] >= 0xC0:  # the first byte of a letter of several bytes
            return data[:-cut]
        if data[-cut] < 0x80:
            break
    return data


def _shortened(text: str) -> str:
    if len(text) <= LONGEST_LINE:
        return text
    return "\n".join(
        line
        if len(line) <= LONGEST_LINE
        else f"{line[:LONGEST_LINE]}… ({size_in_words(len(line) - LONGEST_LINE)} more of this line)"
        for line in text.split("\n")
    )


def _matches(store: Store, parts: Sequence[Entry], size: int, q: str) -> list[dict[str, Any]]:
    """The first lines that have a text, of the newest bytes."""
    wanted = q.lower().encode(errors="replace")
    found = []
    for at, line in _lines(store, parts, max(0, size - MOST_SEARCHED), size):
        if wanted in line.lower():
            place = max(0, line.lower().find(wanted) - LONGEST_MATCH // 4)
            cut = line[place : place + LONGEST_MATCH].decode(errors="replace").strip("\r\n")
            found.append({"offset": at, "line": f"{'… ' if place else ''}{cut}"})
            if len(found) >= MOST_MATCHES:
                break
    return found


def _lines(store: Store, parts: Sequence[Entry], start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Each line and the place of its first byte; of a line that is longer than a chunk, parts."""
    rest, at = b"", start
    while start < end:
        data = _read(store, parts, start, min(_CHUNK, end - start))
        if not data:
            break
        start += len(data)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield at, line
            at += len(line) + 1
        if len(rest) > _CHUNK:
            yield at, rest
            at, rest = at + len(rest), b""
    if rest:
        yield at, rest


__all__ = ["logs", "text"]
