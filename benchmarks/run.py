"""Benchmarks of the private step. Writes ``benchmarks/results.json`` and prints a table.

Every figure is a ratio of medians measured in turn within this run: the machine's own
speed, and most of its moods, cancel out. What is not private is measured with its stacked
layers scanned and unrolled, and the faster counts. Run with ``make bench``.
"""

import functools
import json
import pathlib
import platform
import statistics
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import paramax
from rich.console import Console
from rich.table import Table

from dpflows.models.architectures import Architecture
from dpflows.models.autoregressive import CellShape
from dpflows.models.density import Defended, wide_gaussian
from dpflows.pipeline.training import negative_log_likelihood as loss
from dpflows.privacy.randomness import Entropy
from dpflows.training.batches import UniformBatches, make_batches
from dpflows.training.dp_sgd import CHUNK, Loop, Optimizer, plain_gradient, private_gradient
from dpflows.training.ghost_clipping import Clipping, by_rows, by_taps, take_apart, unrolled

RESULTS = pathlib.Path(__file__).with_name("results.json")
DIM, WIDTH, BLOCKS, ROWS = 10, 100, 5, 24_059
REPEATS = 10
FLOWS, CELLS, BATCHES = ("maf", "nsf"), "cells", (512, 2048)
FAMILIES = (*FLOWS, CELLS)
#: Cells of a mixed table's columns, as many as the Adult table has at epsilon 1.
SIZES = (2, 24, 9, 31, 16, 16, 7, 15, 6, 5, 2, 8, 7, 30, 4)


@functools.cache
def apart(family, columns=DIM):
    """Parameters and blueprint of the benchmark flow, or of a network of cells."""
    if family == CELLS:
        return take_apart(CellShape().build(SIZES, key=jax.random.key(0)))
    architecture = Architecture(family, width=WIDTH, depth=2, blocks=BLOCKS)
    flow = architecture.build(columns, key=jax.random.key(0))
    return take_apart(Defended(flow, wide_gaussian(columns)))


def private_loop(family, batch, rows=ROWS, columns=DIM):
    """A whole private step (batch drawn, taps, noise, Adam), and where it starts."""
    parameters, blueprint = apart(family, columns)
    clipper = by_taps(loss, blueprint, Clipping())
    gradient = private_gradient(
        clipper, blueprint, parameters, noise_multiplier=2.0, batch_size=batch
    )
    batches = make_batches("poisson", rows=rows, batch_size=batch)
    return Loop(gradient, batches, Optimizer(), 10**6), parameters


class Unrolled:
    """Assembles a model whose stacked layers run one after the other, as tapped ones do."""

    def __init__(self, blueprint):
        self.blueprint = blueprint

    def assemble(self, parameters):
        return unrolled(paramax.unwrap(self.blueprint.assemble(parameters)))


def plain_loop(family, batch, rows=ROWS, view=lambda blueprint: blueprint):
    """A whole step without privacy (batch drawn, gradient, Adam), and where it starts."""
    parameters, blueprint = apart(family)
    gradient = plain_gradient(loss, view(blueprint))
    return Loop(gradient, UniformBatches(rows, batch), Optimizer(), 10**6), parameters


def chunk_runner(loop, parameters, rows):
    """A function that makes one chunk of steps."""
    advance, holder = loop.advance(Entropy.from_os()), [loop.start(parameters)]

    def run():
        holder[0] = jax.block_until_ready(advance(holder[0], rows, int(holder[0].step)))

    return run


def in_turn(*functions, rounds=15):
    """Median seconds of each function, called in turn so that all share the machine's moods."""
    for function in functions:
        function()
    times = [[] for _ in functions]
    for _ in range(rounds):
        for function, log in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            log.append(time.perf_counter() - start)
    return [statistics.median(log) for log in times]


def made_up_rows(count, columns=DIM):
    return jax.random.normal(jax.random.key(1), (count, columns))


def rows_for(family, count):
    """Rows that a family can model."""
    if family != CELLS:
        return made_up_rows(count)
    share = jax.random.uniform(jax.random.key(1), (count, len(SIZES)))
    return jnp.floor(share * jnp.array(SIZES))


def step_ratio(family, batch):
    rows = rows_for(family, ROWS)
    private, *plain = in_turn(
        chunk_runner(*private_loop(family, batch), rows),
        chunk_runner(*plain_loop(family, batch), rows),
        chunk_runner(*plain_loop(family, batch, view=Unrolled), rows),
    )
    return private / min(plain)


def gradients(family, batch, *makers):
    """Calls that each sum the gradients of a few batches, as training does, in one program.

    One program for several batches, because a program's scratch memory is set up at
    every call: training pays that once per chunk of steps, not once per step.
    """
    parameters, blueprint = apart(family)
    rows, present = rows_for(family, REPEATS * batch), jnp.ones(batch, bool)
    functions = []
    for view in (blueprint, Unrolled(blueprint)):
        plain = plain_gradient(loss, view)
        functions.append(lambda p, r, g=plain: g(p, r, present))
    for make in makers:
        clipper = make(loss, blueprint, Clipping())
        functions.append(lambda p, r, c=clipper: c(p, r, present).gradient)
    batches = rows.reshape(REPEATS, batch, -1)
    return [functools.partial(_wait, _summed(f), parameters, batches) for f in functions]


def _summed(function):
    def total(parameters, batches):
        def add(so_far, rows):
            more = function(parameters, rows)
            with jax.enable_x64(True):
                return jax.tree.map(jnp.add, so_far, more), None

        shapes = jax.eval_shape(function, parameters, batches[0])
        with jax.enable_x64(True):
            zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return jax.lax.scan(add, zero, batches)[0]

    return jax.jit(total)


def _wait(function, *arguments):
    return jax.block_until_ready(function(*arguments))


def gradient_ratio(family, batch):
    *plain, taps = in_turn(*gradients(family, batch, by_taps), rounds=15)
    return taps / min(plain)


def speedup_vs_vmap(family, batch):
    """Taps against ``vmap(grad)`` over the whole batch at once."""
    whole = functools.partial(by_rows, microbatch=batch)
    *_, taps, rows = in_turn(*gradients(family, batch, by_taps, whole), rounds=5)
    return rows / taps


def step_seconds(*settings):
    """Seconds per whole private step for each (rows, columns, batch), measured in turn."""
    runners = []
    for rows, columns, batch in settings:
        loop, parameters = private_loop("maf", batch, rows=rows, columns=columns)
        runners.append(chunk_runner(loop, parameters, made_up_rows(rows, columns)))
    return [seconds / CHUNK for seconds in in_turn(*runners, rounds=5)]


def costs():
    """Seconds per private step against rows, columns and batch."""
    swept = {
        "rows": (10_000, 100_000, 1_000_000, 10_000_000),
        "columns": (2, 5, 10, 20, 40),
        "batch": (128, 512, 2048, 8192),
    }
    usual = {"rows": 100_000, "columns": DIM, "batch": 512}
    return {
        name: dict(
            zip(
                map(str, values),
                step_seconds(*(tuple((usual | {name: v}).values()) for v in values)),
                strict=True,
            )
        )
        for name, values in swept.items()
    }


def plot_costs(measured, path):
    """One panel each: what a step costs against rows, columns and batch."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    for axis, (name, seconds) in zip(
        figure.subplots(1, 3, sharey=True), measured.items(), strict=True
    ):
        axis.loglog([int(x) for x in seconds], [1000 * s for s in seconds.values()], "o-")
        axis.set_xticks([int(x) for x in seconds], [f"{int(x):,}" for x in seconds])
        axis.set_yticks([2, 5, 10, 20, 50], ["2", "5", "10", "20", "50"])
        axis.minorticks_off()
        axis.set_xlabel(name)
        axis.grid(alpha=0.3, which="both")
    figure.axes[0].set_ylabel("milliseconds per private step")
    figure.suptitle("maf, 5 blocks of width 100; 100,000 rows, 10 columns, batch 512 unless varied")
    figure.savefig(path, dpi=130)


def peak_megabytes(kind, family, batch):
    """Peak memory of one process that makes a chunk of steps."""
    call = [sys.executable, __file__, "--peak", kind, family, str(batch)]
    return float(subprocess.run(call, capture_output=True, text=True, check=True).stdout)


def print_peak(kind, family, batch):
    make = private_loop if kind == "private" else plain_loop
    chunk_runner(*make(family, batch), rows_for(family, ROWS))()
    # Not getrusage: a child's count there begins with its parent's peak.
    status = pathlib.Path("/proc/self/status").read_text()
    print(next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) / 1024)


def memory_ratio(family, batch):
    private, plain = (peak_megabytes(kind, family, batch) for kind in ("private", "plain"))
    return private / plain


MEASURES = {
    "step_ratio": step_ratio,
    "gradient_ratio": gradient_ratio,
    "memory_ratio": memory_ratio,
}


def measure():
    console = Console(stderr=True)
    results = {
        "settings": {"columns": DIM, "width": WIDTH, "blocks": BLOCKS, "rows": ROWS},
        "versions": {"python": platform.python_version(), "jax": jax.__version__},
    }
    for name, function in MEASURES.items():
        results[name] = {
            family: {str(batch): round(function(family, batch), 3) for batch in BATCHES}
            for family in FAMILIES
        }
        console.print(name, results[name])
    results["speedup_vs_vmap"] = {
        family: {"512": round(speedup_vs_vmap(family, 512), 1)} for family in FLOWS
    }
    results["costs"] = costs()
    plot_costs(results["costs"], RESULTS.with_name("costs.png"))
    return results


def table(results):
    sheet = Table("measure", "family", *(f"batch {batch}" for batch in BATCHES))
    for name in (*MEASURES, "speedup_vs_vmap"):
        for family, by_batch in results.get(name, {}).items():
            cells = (by_batch.get(str(batch)) for batch in BATCHES)
            sheet.add_row(name, family, *("" if c is None else f"{c:.2f}" for c in cells))
    return sheet


def main():
    if "--peak" in sys.argv:
        kind, family, batch = sys.argv[-3:]
        print_peak(kind, family, int(batch))
        return
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results = {k: kept[k] for k in ("peers",) if k in kept} | measure()
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    Console().print(table(results))
    rows_cost = results["costs"]["rows"]
    least = min(rows_cost.values())
    Console().print("step time by rows:", {k: f"{s / least:.2f}x" for k, s in rows_cost.items()})


if __name__ == "__main__":
    main()
