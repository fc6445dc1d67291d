"""SmartNoise in a process of its own: pipes, time limit, failures; a stand-in for the library."""

import os
import sys

import numpy as np
import pytest

from dpflows.errors import InputError
from dpflows.experiments.baselines import BASELINES, TooSlow, smartnoise
from dpflows.experiments.baselines.base import Binned
from dpflows.privacy.guarantee import Budget
from dpflows.privacy.randomness import Entropy
from dpflows.table.schema import Schema

BUDGET = Budget(1.0, 1e-6)
#: Draws the fitted rows again; says on standard output what would spoil an answer.
STAND_IN = """
import time
class TableTransformer:
    def __init__(self, parts): self.parts = parts
    def fit(self, frame): self.sizes = [frame[c].nunique() for c in frame]
class Synthesizer:
    @classmethod
    def create(cls, name, epsilon, delta):
        made = cls(); made.name = name; return made
    def fit(self, frame, transformer):
        print("noise on standard output")
        self.frame, self.sizes = frame, transformer.sizes
        if len(frame) == 3: raise ValueError("patient 4711")
        if len(frame) == 4: time.sleep(60)
    def sample(self, n):
        assert self.sizes == [3, 5], self.sizes
        return self.frame.iloc[[i % len(self.frame) for i in range(n)]]
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    folder = tmp_path / "snsynth"
    folder.mkdir()
    (folder / "__init__.py").write_text(STAND_IN)
    (folder / "transform.py").write_text("def LabelTransformer(nullable): return nullable\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(smartnoise.VARIABLE, sys.executable)


def draw(rows, *, seconds=60.0, budget=BUDGET, n=7):
    codes = np.array([[2, 4]] * (rows - 1) + [[-1, 0]])
    baseline = BASELINES["smartnoise-mst"](seconds=seconds)
    return baseline.draw(Binned(codes, (3, 5)), budget, n, Entropy.from_os())


@pytest.mark.usefixtures("stand_in")
def test_rows_go_out_and_come_back():
    drawn = draw(6)
    assert drawn.tolist() == [[2, 4]] * 5 + [[0, 0], [2, 4]]


@pytest.mark.usefixtures("stand_in")
def test_a_failure_does_not_quote_and_a_slow_one_is_stopped():
    with pytest.raises(InputError, match=r"failed in its environment \(code 1\)") as caught:
        draw(3)
    assert "4711" not in str(caught.value)
    with pytest.raises(TooSlow):
        draw(4, seconds=0.5)


def test_what_is_claimed_is_stamped():
    promise = BASELINES["smartnoise-aim"]().guarantee(
        Schema.from_bounds([0], [1]), Budget(1.0, 1e-6)
    )
    assert promise.stamps == (smartnoise.CLAIM,)
    assert not promise.is_private
    with pytest.raises(InputError, match="replace-one"):
        draw(6, budget=Budget(1.0, 1e-6, "replace-one"))


def test_without_an_environment_it_says_which_to_name(monkeypatch):
    monkeypatch.delenv(smartnoise.VARIABLE, raising=False)
    assert smartnoise.VARIABLE in BASELINES["smartnoise-mst"]().missing()
    monkeypatch.setenv(smartnoise.VARIABLE, "no-such-python")
    assert BASELINES["smartnoise-mst"]().missing() is not None


@pytest.mark.long
@pytest.mark.skipif(smartnoise.VARIABLE not in os.environ, reason="no SmartNoise is named")
@pytest.mark.parametrize("name", ["smartnoise-mst", "smartnoise-aim"])
def test_the_real_one_keeps_a_dependence(name):
    """A column that repeats another, in 3,000 rows at epsilon 8: almost all cells agree."""
    one = np.arange(3000) % 3
    rows = Binned(np.column_stack([one, one]), (3, 5))
    drawn = BASELINES[name]().draw(rows, Budget(8.0, 1e-6), 1000, Entropy.from_os())
    assert np.mean(drawn[:, 0] == drawn[:, 1]) > 0.9
