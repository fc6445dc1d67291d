"""Where members are fitted: this process, others, or the workers of a cluster.

Rows travel to the workers in memory. What a cluster's own software does with them there,
such as spilling to disk, is for its administrator to answer.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from dpflows.errors import InputError

#: Backends that hand over results one by one, so that progress can be shown.
LOCAL = (None, "loky", "threading", "sequential")


@contextlib.contextmanager
def _here(jobs: int | None) -> Iterator[None]:
    yield


@contextlib.contextmanager
def _dask(jobs: int | None) -> Iterator[None]:
    distributed = _import("distributed", "dask")
    try:
        distributed.default_client()
    except ValueError:
        # Without a memory limit a worker of ours never spills rows to disk.
        with distributed.Client(
            n_workers=_workers(jobs),
            threads_per_worker=1,
            memory_limit=None,
            dashboard_address=None,
        ):
            yield
    else:
        yield


@contextlib.contextmanager
def _ray(jobs: int | None) -> Iterator[None]:
    ray = _import("ray", "ray")
    # A library for private data reports nothing to anybody.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(num_cpus=_workers(jobs), include_dashboard=False, log_to_driver=False)
    try:
        _import("ray.util.joblib", "ray").register_ray()
        yield
    finally:
        if is_ours:
            ray.shutdown()


BACKENDS: dict[str | None, Callable[[int | None], contextlib.AbstractContextManager[None]]] = {
    **dict.fromkeys(LOCAL, _here),
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


def running(backend: str | None, jobs: int | None) -> contextlib.AbstractContextManager[None]:
    """The backend, started if need be and stopped again if it was started here.

    A Dask client or a Ray session that is there already is used and left as it is.

    Example:
        >>> with running("threading", 2):
        ...     pass
    """
    check_backend(backend)
    return BACKENDS[backend](jobs)


def _workers(jobs: int | None) -> int:
    return jobs if jobs is not None and jobs > 0 else os.cpu_count() or 1


def _import(module: str, extra: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"backend {extra} needs the extra of that name; install dpflows[{extra}]"
        ) from None
