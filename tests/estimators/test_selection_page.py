"""The examples on the page about model selection run and give what they show."""

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "model-selection.md"


def test_the_examples_run():
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=options)
    assert found.attempted >= 8
    assert found.failed == 0
