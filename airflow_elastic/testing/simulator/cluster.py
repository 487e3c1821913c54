"""The machines: nodes with GPUs, some of them away at times."""

from __future__ import annotations

from collections.abc import Mapping


class Cluster:
    """Who has which GPUs. A worker has all its GPUs on one node.

    Args:
        nodes: how many.
        gpus: of each.
    """

    def __init__(self, nodes: int, gpus: int) -> None:
        self._gpus = gpus
        self._free = [gpus] * nodes
        self._away: set[int] = set()
        self.free = nodes * gpus
        self.capacity = nodes * gpus

    def room(self, gpus: int) -> int:
        """For how many workers with so many GPUs each there is room."""
        if gpus == 1:
            return self.free
        return sum(free // gpus for node, free in enumerate(self._free) if node not in self._away)

    def place(self, workers: int, gpus: int) -> dict[int, int]:
        """Give room to so many workers: how many each node got. Raises ValueError if there is not enough room.

        On as few nodes as possible: the fullest node that holds the rest, or else the emptiest one first.
        """
        if workers > self.room(gpus):
            raise ValueError(
                f"there is room for {self.room(gpus)} workers with {gpus} GPUs, not for {workers}"
            )
        placed: dict[int, int] = {}
        left = workers
        while left:
            there = [
                (free // gpus, node)
                for node, free in enumerate(self._free)
                if node not in self._away and free >= gpus
            ]
            enough = [(room, node) for room, node in there if room >= left]
            room, node = min(enough) if enough else max(there, key=lambda one: (one[0], -one[1]))
            count = min(room, left)
            self._take(node, count * gpus)
            placed[node] = placed.get(node, 0) + count
            left -= count
        return placed

    def release(self, placed: Mapping[int, int], gpus: int) -> None:
        """Take the room of these workers back."""
        for node, count in placed.items():
            self._take(node, -count * gpus)

    def leave(self, node: int) -> None:
        """A node goes away. What runs there must be released, too."""
        self._away.add(node)
        self.free -= self._free[node]
        self.capacity -= self._gpus

    def come(self, node: int) -> None:
        """A node is back."""
        self._away.discard(node)
        self.free += self._free[node]
        self.capacity += self._gpus

    def _take(self, node: int, gpus: int) -> None:
        self._free[node] -= gpus
        if node not in self._away:
            self.free -= gpus


def taken(nodes: dict[int, int], workers: int) -> dict[int, int]:
    """Take so many workers from where the fewest are, so that the rest is on few nodes. `nodes` is changed."""
    found: dict[int, int] = {}
    for node in sorted(nodes, key=lambda one: (nodes[one], one)):
        count = min(workers, nodes[node])
        if not count:
            break
        found[node] = count
        workers -= count
        nodes[node] -= count
        if not nodes[node]:
            del nodes[node]
    return found
