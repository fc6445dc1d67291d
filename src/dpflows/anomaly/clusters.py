"""Where members are fitted: this process, others, or the workers of a cluster.

Rows travel to the workers in memory. What a cluster's own software does with them there,
such as spilling to disk, is for its administrator to answer.
"""

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sklearn.utils.parallel import Parallel, delayed

from dpflows.errors import InputError

#: Calls a function with each of many arguments, and gives the results in order.
Run = Callable[[Callable[..., Any], Iterable[tuple[Any, ...]]], Iterable[Any]]
Place = contextlib.AbstractContextManager[Run]


@contextlib.contextmanager
def _local(backend: str | None, jobs: int | None) -> Iterator[Run]:
    yield functools.partial(_side_by_side, backend, jobs)


@contextlib.contextmanager
def _dask(backend: str | None, jobs: int | None) -> Iterator[Run]:
    """Dask's own way to run tasks, without keys that are made from the rows."""
    distributed = _import("distributed", "dask")
    with contextlib.ExitStack() as stack:
        try:
            client = distributed.default_client()
        except ValueError:
            client = stack.enter_context(_own_client(distributed, jobs))

        def run(function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> list[Any]:
            futures = [client.submit(function, *task, pure=False) for task in tasks]
            return list(client.gather(futures))

        yield run


@contextlib.contextmanager
def _ray(backend: str | None, jobs: int | None) -> Iterator[Run]:
    """Ray's own tasks: its backend for joblib rewires joblib's pools for the whole process."""
    # A library for private data reports nothing to anybody.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = _import("ray", "ray")
    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(num_cpus=_workers(jobs), include_dashboard=False, log_to_driver=False)

    def run(function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> list[Any]:
        remote = ray.remote(function)
        return list(ray.get([remote.remote(*task) for task in tasks]))

    try:
        yield run
    finally:
        if is_ours:
            ray.shutdown()


BACKENDS: dict[str | None, Callable[[str | None, int | None], Place]] = {
    **dict.fromkeys((None, "loky", "threading", "sequential"), _local),
    "dask": _dask,
    "ray": _ray,
}


def check_backend(backend: str | None) -> None:
    """Refuse a backend that is not known.

    Example:
        >>> check_backend("abacus")
        Traceback (most recent call last):
        dpflows.errors.InputError: backend must be None, loky, threading, sequential, dask or ray
    """
    if backend not in BACKENDS:
        *names, last = (str(name) for name in BACKENDS)
        raise InputError(f"backend must be {', '.join(names)} or {last}")


def running(backend: str | None, jobs: int | None) -> Place:
    """A backend, started if need be and stopped again if it was started here.

    A Dask client or a Ray session that is there already is used and left as it is.

    Example:
        >>> with running("threading", 2) as run:
        ...     list(run(pow, [(2, 3), (3, 2)]))
        [8, 9]
    """
    check_backend(backend)
    return BACKENDS[backend](backend, jobs)


def _side_by_side(
    backend: str | None,
    jobs: int | None,
    function: Callable[..., Any],
    tasks: Iterable[tuple[Any, ...]],
) -> Iterable[Any]:
    # Without max_nbytes=None, large arrays are written to a temporary file for the workers
    # to map: private rows would be on disk.
    work = Parallel(n_jobs=jobs, backend=backend, max_nbytes=None, return_as="generator")
    results: Iterable[Any] = work(delayed(function)(*task) for task in tasks)
    return results


def _own_client(distributed: Any, jobs: int | None) -> Any:
    # Without a memory limit a worker never spills rows to disk.
    return distributed.Client(
        n_workers=_workers(jobs), threads_per_worker=1, memory_limit=None, dashboard_address=None
    )


def _workers(jobs: int | None) -> int:
    return jobs if jobs is not None and jobs > 0 else os.cpu_count() or 1


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"backend {extra} needs the extra of that name; install dpflows[{extra}]"
        ) from None
