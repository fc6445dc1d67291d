"""Seconds per clipped gradient of the benchmark MAF, by taps. Called by ``peers.py``."""

import sys

from run import REPEATS, apart, by_taps, gradients, jax
from turns import serve


def main(batch):
    # the plain gradients come first, the one that was asked for last
    *_, clipped = gradients("maf", batch, by_taps)
    count = sum(leaf.size for leaf in jax.tree.leaves(apart("maf")[0]))
    serve(clipped, {"parameters": count, "gradients": REPEATS})


if __name__ == "__main__":
    main(int(sys.argv[1]))
