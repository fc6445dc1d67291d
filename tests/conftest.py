"""Settings of the whole suite."""

from pathlib import Path

import jax

# Most of the suite's time is compilation of programs that run for milliseconds, and many
# tests compile the same ones.
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[1] / ".jax_cache"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
