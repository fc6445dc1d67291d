"""``dpflows demo``: a first example, from generated private rows to a public model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dpflows.cli import output, settings
from dpflows.errors import InputError

#: delta by the rule of all commands: below one over the number of rows
EPSILON, DELTA, ROWS, TEST_ROWS = 1.5, 1e-6, 30_000, 3_000
FILES = {
    "model": "model.dpflow",
    "synthetic": "synthetic.csv",
    "picture": "density.png",
    "certificate": "certificate.txt",
}


def demo(
    folder: Annotated[Path, typer.Option("--output", help="Output folder.")] = Path("demo"),
    force: settings.Force = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON document.")
    ] = False,
) -> None:
    """Fit a private flow to generated data and write the results."""
    import numpy as np

    from dpflows.estimators.flow import DPFlow
    from dpflows.experiments.data import DATASETS, generate

    places = _places(folder, force=force)
    screen = output.console(quiet=json)
    rng = np.random.default_rng()
    train, test = (generate("pinwheel", rows, rng=rng) for rows in (ROWS, TEST_ROWS))
    box = (DATASETS["pinwheel"].low, DATASETS["pinwheel"].high)
    # the rule would take a mixture here; a demo of flows shows one
    flow = DPFlow(epsilon=EPSILON, delta=DELTA, bounds=box)
    screen.print(f"Fitting a private flow to {ROWS:,} rows of the pinwheel data set")
    _fit(flow, train, quiet=json)
    files = _leave(flow, train, places, force=force)
    result = _result(flow, flow.score(test), files)
    if json:
        output.print_json(result)
    else:
        _tell(screen, flow, result)


def _fit(flow: Any, rows: Any, *, quiet: bool) -> None:
    """Fit with a progress bar of steps, epsilon and time left."""
    from dpflows.pipeline.plan import Odometer
    from dpflows.training.dp_sgd import Callbacks

    plan = flow.plan(*rows.shape)
    spent = Odometer(plan)
    with output.progress("training", steps=plan.steps, quiet=quiet) as advance:
        flow.fit(rows, callbacks=Callbacks(on_progress=lambda at: advance(at.step, spent(at.step))))


def _places(folder: Path, *, force: bool) -> dict[str, Path]:
    """The paths of the four files; refused before any work if one cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        raise InputError(f"output must be a folder, got {str(folder)!r}; choose another") from None
    paths = {name: folder / file for name, file in FILES.items()}
    for path in paths.values():
        settings.require_target(path, (), force=force)
    return paths


def _leave(flow: Any, train: Any, paths: dict[str, Path], *, force: bool) -> dict[str, str]:
    """Write the four files, each of them atomically."""
    import pandas as pd

    from dpflows.evaluation.plots import density_figure
    from dpflows.files import write_atomically

    synthetic = flow.sample(ROWS)
    flow.save(paths["model"], overwrite=force)
    with write_atomically(paths["synthetic"], overwrite=force) as file:
        pd.DataFrame(synthetic, columns=["x", "y"]).to_csv(file, index=False, float_format="%.6g")
    density_figure(train, synthetic, flow.score_samples, paths["picture"])
    with write_atomically(paths["certificate"], overwrite=force) as file:
        file.write((flow.privacy_statement() + "\n").encode())
    return {name: str(path) for name, path in paths.items()}


def _result(flow: Any, score: float, files: dict[str, str]) -> dict[str, Any]:
    promise = flow.guarantee_
    return {
        "epsilon": promise.epsilon,
        "delta": promise.delta,
        "neighbours": promise.neighbours,
        "replace_one_epsilon": promise.replace_one_epsilon,
        "test_log_likelihood": score,
        "files": files,
    }


def _tell(screen: Any, flow: Any, result: dict[str, Any]) -> None:
    plan = flow.plan_
    screen.print(
        f"Trained {plan.steps:,} steps of about {plan.batches.batch_size:,} rows "
        f"with noise multiplier {plan.noise_multiplier:.2f}."
    )
    screen.print(f"Guarantee: {_headline(flow.guarantee_)}")
    screen.print(
        f"Test log-likelihood: {result['test_log_likelihood']:.3f} nats per row "
        f"(NOT PRIVATE: computed on {TEST_ROWS:,} held-out rows, which are generated here)."
    )
    for name, path in result["files"].items():
        screen.print(f"  {name:<12} {path}")
    screen.print(f"Next: {_next_command(plan)}", soft_wrap=True)


def _next_command(plan: Any) -> str:
    """The same run as every accountant sees it."""
    return (
        f"dpflows account --rows {plan.rows} --batch-size {plan.batches.batch_size} "
        f"--noise-multiplier {plan.noise_multiplier:.3g} --steps {plan.steps} "
        f"--delta {plan.budget.delta:g}"
    )


def _headline(promise: Any) -> str:
    return (
        f"epsilon {promise.epsilon:.3f} at delta {promise.delta:g} ({promise.neighbours}), "
        f"or {promise.replace_one_epsilon:.3f} for replace-one neighbours."
    )
