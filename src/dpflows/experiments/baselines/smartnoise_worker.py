"""The program that runs SmartNoise in its own environment; does not import dpflows.

Reads arrays from standard input, fits and draws, and writes arrays to standard output.
"""

import io
import sys
from typing import Any

import numpy as np


def main() -> None:
    """Fit the synthesizer that is named, to bins that came in, and send back bins."""
    output, sys.stdout = sys.stdout, sys.stderr
    with np.load(io.BytesIO(sys.stdin.buffer.read()), allow_pickle=False) as file:
        task = {name: file[name] for name in file.files}
    drawn = synthesise(sys.argv[1], task)
    packed = io.BytesIO()
    np.savez(packed, codes=drawn)
    output.buffer.write(packed.getvalue())
    output.buffer.flush()


def synthesise(name: str, task: dict[str, Any]) -> np.ndarray:
    """Rows of a synthesizer with given bins, so that it reads none from the rows."""
    import pandas as pd
    from snsynth import Synthesizer, TableTransformer
    from snsynth.transform import LabelTransformer

    sizes = task["sizes"].tolist()
    names = [f"c{i}" for i in range(len(sizes))]
    table = TableTransformer([LabelTransformer(nullable=False) for _ in sizes])
    # every column shows each of its bins, again and again if another has more
    rows = np.arange(max(sizes))[:, None] % np.array(sizes)
    table.fit(pd.DataFrame(rows, columns=names))
    synthesizer = Synthesizer.create(
        name, epsilon=float(task["epsilon"]), delta=float(task["delta"])
    )
    synthesizer.fit(pd.DataFrame(task["codes"], columns=names), transformer=table)
    return np.asarray(synthesizer.sample(int(task["n"])), dtype=np.int64)


if __name__ == "__main__":
    main()
