"""Work that falls into independent pieces, on all cores of the machine.

Compiled programs run outside of Python's lock, so threads are enough.
"""

import concurrent.futures
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

Result = TypeVar("Result")


def cores() -> int:
    """How many cores this process may use.

    Example:
        >>> cores() >= 1
        True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shares(count: int) -> list[slice]:
    """Slices of ``count`` things, one for each core.

    Example:
        >>> sum(len(range(5)[share]) for share in shares(5))
        5
    """
    workers = min(cores(), count)
    ends = [count * i // workers for i in range(workers + 1)]
    return [slice(low, high) for low, high in zip(ends, ends[1:], strict=False)]


def on_all_cores(function: Callable[[Any], Result], items: Sequence[Any]) -> list[Result]:
    """What a function gives for each item, in the order of the items.

    The first item of its kind is worked on alone: what has to be compiled is then compiled once.

    Example:
        >>> on_all_cores(lambda x: x * x, [1, 2, 3])
        [1, 4, 9]
    """

    def finished(item: Any) -> Result:
        return jax.block_until_ready(function(item))

    alone = int(_is_new(function, items))
    first, rest = [finished(item) for item in items[:alone]], items[alone:]
    return first + list(_pool(cores()).map(finished, rest))


def _is_new(function: Callable[[Any], Any], items: Sequence[Any]) -> bool:
    """Whether no item of these shapes was seen yet; an error would cost time and nothing else."""
    shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(items[:1]))
    kind = function.__module__, function.__qualname__, shapes
    is_new = kind not in _seen
    _seen.add(kind)
    return is_new


_seen: set[Any] = set()


@functools.lru_cache(maxsize=1)
def _pool(workers: int) -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(workers)
