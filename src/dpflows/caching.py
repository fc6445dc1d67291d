"""The folder for what can be had again: downloads of tables, and compiled programs."""

import os
from pathlib import Path

#: Names the folder where it should not be the usual one.
CACHE_VARIABLE = "DPFLOWS_CACHE"


def cache_folder() -> Path:
    """``DPFLOWS_CACHE``, or ``dpflows`` in the user's folder of caches."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given) if given else Path.home() / ".cache" / "dpflows"


def keep_compiled_programs() -> None:
    """Let JAX find programs that were compiled before, also by other processes.

    Does nothing where a folder is set already, or where this one cannot be written.

    Guarantee:
        Programs get rows as arguments and never hold them, so none is in the folder.
    """
    import jax

    if jax.config.jax_compilation_cache_dir is not None:  # type: ignore[attr-defined]
        return
    folder = cache_folder() / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return
    if os.access(folder, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
