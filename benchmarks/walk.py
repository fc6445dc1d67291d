"""The steps of a fit in the order in which they run, as ``docs/architecture.md`` shows them.

    python benchmarks/walk.py            # print the figure
    python benchmarks/walk.py --write    # put it into docs/architecture.md

The figure is made by watching two fits of generated rows: every line is a function that ran.
"""

import argparse
import functools
import pathlib
import sys
import warnings

import numpy as np

from dpflows import DPAutoregressive, DPFlow, Ledger, Schema
from dpflows.models.architectures import Architecture
from dpflows.pipeline.plan import Stage
from dpflows.privacy.guarantee import Budget
from dpflows.table.columns import Column

ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCE = f"{ROOT}/src/dpflows/"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- walk: begin -->", "<!-- walk: end -->"

RUN = "run a stage"
#: What functions do in the walk, by the end of their file's and their qualified name.
STEPS = {
    "TableSpec.resolve": "resolve the declarations",
    "TableSpec.read": "read the rows",
    "._stages": "make the plan",
    "charging.py:charge": "charge it",
    ".run": RUN,
    "._assemble": "assemble the density",
    "Payment.hand_out": "hand out the model",
}
SMALL = {"steps": 2, "batch_size": 50}


def figure(folder: pathlib.Path) -> str:
    """Both fits as text; the folder gets two ledgers."""
    rows = np.random.default_rng().normal(size=(400, 3)).clip(-4, 4)
    shape = Architecture("nsf", width=4, depth=1, blocks=1)
    chosen = {"architecture": shape, "normalisation": "moments", "optimizer": "adam"}
    numbers = DPFlow(4.0, 1e-4, bounds=(-4, 4), prior=None, **chosen, **SMALL)
    schema = Schema(
        (
            Column("ward", "categorical", categories=("a", "b")),
            Column("age", "integer", min=0, max=120),
        )
    )
    people = [[("a", "b")[i % 2], 20 + i % 60] for i in range(400)]
    mixed = DPAutoregressive(4.0, 1e-4, schema=schema, **SMALL)
    return "\n\n".join(
        walk(model, table, Ledger(folder / f"{at}.ledger", cap=Budget(9.0, 1e-3)))
        for at, (model, table) in enumerate([(numbers, rows), (mixed, people)])
    )


def walk(model: object, table: object, ledger: Ledger) -> str:
    """One fit as text: what was done, by which function, with how many releases."""
    lines: list[tuple[str, str, str, str]] = []

    def watch(frame: object, event: str, _: object) -> None:
        if event == "call" and (what := meaning(frame.f_code)) is not None:
            lines.extend(line(what, frame))

    sys.setprofile(watch)
    try:
        model.fit(table, ledger=ledger)
    finally:
        sys.setprofile(None)
    widths = [max(len(line[i]) for line in lines) for i in range(3)]
    shown = [
        f"  {at:>2}  " + "  ".join(f"{c:{w}}" for c, w in zip(line, [*widths, 0], strict=True))
        for at, line in enumerate(lines, 1)
    ]
    return "\n".join([f"{type(model).__name__}.fit", *(line.rstrip() for line in shown)])


@functools.cache
def meaning(code: object) -> str | None:
    """What a function does in the walk; nothing for most functions."""
    if not code.co_filename.startswith(SOURCE):
        return None
    whole = f"{code.co_filename}:{code.co_qualname}"
    return next((STEPS[ending] for ending in STEPS if whole.endswith(ending)), None)


def line(what: str, frame: object) -> list[tuple[str, str, str, str]]:
    """What is shown of a call."""
    name, place = frame.f_code.co_qualname, frame.f_code.co_filename.removeprefix(SOURCE)
    if what != RUN:
        return [(what, name, place, "")]
    me = frame.f_locals["self"]
    if not isinstance(me, Stage):
        return []
    return [(what, f"{type(me).__name__}.run", place, released(sum(e.count for e in me.events)))]


def released(count: int) -> str:
    return {0: "releases nothing", 1: "1 release"}.get(count, f"{count} releases")


def with_figure(page: str, shown: str) -> str:
    """The page with the figure between its two marks."""
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    return f"{before}{BEGIN}\n```text\n{shown}\n```\n{END}{after}"


def main() -> None:
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        shown = figure(pathlib.Path(folder))
    print(shown)
    if given.write:
        PAGE.write_text(with_figure(PAGE.read_text(), shown))


if __name__ == "__main__":
    main()
