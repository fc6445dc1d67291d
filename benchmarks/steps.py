"""Milliseconds of a private and of a plain step. ``python benchmarks/steps.py [families]``.

To compare two versions, run it in a checkout of each, one after the other on one machine:
``PYTHONPATH=OTHER/src python benchmarks/steps.py maf OTHER/benchmarks`` measures another one.
"""

import sys

BATCHES, ROUNDS = (512, 2048), 9


def main(families="maf,nsf,cells", folder=None):
    if folder is not None:
        sys.path.insert(0, folder)
    import run

    for family in families.split(","):
        for batch in BATCHES:
            rows = run.rows_for(family, run.ROWS)
            private, *plain = run.in_turn(
                run.chunk_runner(*run.private_loop(family, batch), rows),
                run.chunk_runner(*run.plain_loop(family, batch), rows),
                run.chunk_runner(*run.plain_loop(family, batch, view=run.Unrolled), rows),
                rounds=ROUNDS,
            )
            per_step = [1000 * seconds / run.CHUNK for seconds in (private, min(plain))]
            print(family, batch, *(f"{ms:.2f}" for ms in per_step), f"{private / min(plain):.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
