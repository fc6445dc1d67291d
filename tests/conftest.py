"""Settings of the whole suite."""

import jax

# Most of the suite's time is compilation of programs that run for milliseconds.
jax.config.update("jax_disable_most_optimizations", True)
