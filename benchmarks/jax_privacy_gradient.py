"""Seconds per clipped gradient of the benchmark MAF under jax-privacy. Called by ``peers.py``.

The same flow, weights, rows and loss as ours, in the same scan over a few batches; only the
clipping is jax-privacy's. Both sums are compared before anything is measured.
"""

import functools
import sys

import jax
import jax.numpy as jnp
from jax_privacy import clipping
from run import REPEATS, Clipping, _summed, _wait, apart, by_taps, loss, rows_for
from turns import serve

MICROBATCH, AGREEMENT = 16, 1e-4


def clipped_gradient(blueprint):
    return clipping.clipped_grad(
        lambda parameters, row: loss(blueprint.assemble(parameters), row),
        l2_clip_norm=Clipping().norm,
        keep_batch_dim=False,
        microbatch_size=MICROBATCH,
    )


def difference(theirs, ours):
    """The largest difference of two gradients, over the largest entry."""
    pairs = list(zip(jax.tree.leaves(theirs), jax.tree.leaves(ours), strict=True))
    gap = max(float(jnp.abs(a - b).max(initial=0.0)) for a, b in pairs)
    return gap / max(float(jnp.abs(b).max(initial=0.0)) for _, b in pairs)


def main(batch):
    parameters, blueprint = apart("maf")
    # at the start most gradients are alike; shaken weights tell the rows apart
    key = jax.random.key(2)
    parameters = jax.tree.map(
        lambda leaf: leaf + 0.1 * jax.random.normal(key, leaf.shape, leaf.dtype), parameters
    )
    rows = rows_for("maf", REPEATS * batch).reshape(REPEATS, batch, -1)
    theirs, taps = clipped_gradient(blueprint), by_taps(loss, blueprint, Clipping())
    ours = jax.jit(lambda p, r: taps(p, r, jnp.ones(len(r), bool)).gradient)
    gap = difference(jax.jit(theirs)(parameters, rows[0]), ours(parameters, rows[0]))
    if not gap < AGREEMENT:
        raise SystemExit(f"jax-privacy and by_taps differ by {gap:.1e}")
    count = sum(leaf.size for leaf in jax.tree.leaves(parameters))
    measured = functools.partial(_wait, _summed(theirs), apart("maf")[0], rows)
    serve(measured, {"parameters": count, "gradients": REPEATS, "difference": gap})


if __name__ == "__main__":
    main(int(sys.argv[1]))
