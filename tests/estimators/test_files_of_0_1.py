"""Files that version 0.1 wrote are read, and say what they said."""

import json
from pathlib import Path

import numpy as np
import pytest

from dpflows import load
from dpflows.errors import InputError
from dpflows.files import read_model, write_model

FILES = sorted(Path(__file__).with_name("files_of_0_1").glob("*.dpflow"))
#: What 0.1 called a flow over mixed rows is a class of its own now.
RENAMED = {"DPFlow-mixed": "DPAutoregressive"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_model_of_0_1_is_read(path, tmp_path):
    model = load(path)
    assert type(model).__name__ == RENAMED.get(path.stem, path.stem)
    if hasattr(model, "sample"):
        rows = model.sample(20)
        assert np.isfinite(model.score_samples(rows)).all()
        model.save(tmp_path / "again.dpflow")
        again = load(tmp_path / "again.dpflow")
        assert type(again) is type(model)
        np.testing.assert_allclose(again.score_samples(rows), model.score_samples(rows), 1e-6)
        assert again.guarantee_ == model.guarantee_


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_that_lost_a_part_is_refused(path, tmp_path):
    header, arrays = read_model(path)
    for part in ("guarantee", "plan", "density"):
        if part in header:
            left = {name: value for name, value in header.items() if name != part}
            write_model(tmp_path / "m.dpflow", header=json.loads(json.dumps(left)), arrays=arrays)
            with pytest.raises(InputError):
                load(tmp_path / "m.dpflow")
            (tmp_path / "m.dpflow").unlink()
