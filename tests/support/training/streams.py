"""Streams whose samples say where they are from."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from airflow_elastic.runtime.data.stream import ShardedStream


def read_shard(lengths: list[int], shard: int, offset: int) -> Iterator[tuple[int, int]]:
    return ((shard, number) for number in range(offset, lengths[shard]))


def stream_of(lengths: list[int], lanes: int) -> ShardedStream:
    return ShardedStream(range(len(lengths)), partial(read_shard, lengths), lanes=lanes)
