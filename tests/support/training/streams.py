"""Streams whose samples say where they are from."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_elastic.runtime.data.stream import ShardedStream


def stream_of(lengths: list[int], lanes: int) -> ShardedStream:
    def read(shard: int, offset: int) -> Iterator[tuple[int, int]]:
        return ((shard, number) for number in range(offset, lengths[shard]))

    return ShardedStream(range(len(lengths)), read, lanes=lanes)
