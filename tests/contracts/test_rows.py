"""No row changes how another one is read, nor what is public about a table.

Two tables that differ in one row, in any way, give the same encodings of all other rows, bit
by bit, and the same header of the model file. Pairs are made from case numbers, so the tests
have no false alarms: a failure names its case, and ``neighbours.make`` builds it again.
"""

import collections
import functools
import warnings

import pytest

from contracts import neighbours, row_by_row
from contracts.inferences import PLANTED
from contracts.pointed import LARGE, POINTED, REFUSABLE
from contracts.row_by_row import REFUSED, SAME
from dpflows import DPAutoregressive, DPGaussian, DPHistogram
from dpflows.errors import InputError
from dpflows.files import read_model

#: One round of all readers is 30 cases, half of them text files.
FEW, MANY = 90, 2_000
#: Of all pairs, and of the pairs of each reader: those of which both tables are read.
FEWEST_READ, FEWEST_READ_OF_ONE = 0.7, 0.4
#: What a file's header says that is computed from released numbers, and so from the noise.
NOISY = ("log_inside",)
#: Cases in which a planted inference must show.
MOST_TRIED = 1_000


@functools.cache
def pair_of(number):
    return neighbours.make(number)


def results(numbers, folder):
    """What the property says of each pair, by reader; failures by name."""
    found, failures = collections.defaultdict(list), []
    for number in numbers:
        pair = pair_of(number)
        result = row_by_row.differences(pair, folder)
        found[pair.reader].append(result)
        failures += [] if result in (SAME, REFUSED) else [f"{pair}: {result}"]
    return found, failures


def share_read(results_of):
    return sum(result != REFUSED for result in results_of) / len(results_of)


def test_one_row_changes_nothing_else(tmp_path):
    found, failures = results(range(FEW), tmp_path)
    assert not failures
    assert set(found) == set(neighbours.READERS)
    assert share_read(sum(found.values(), [])) >= FEWEST_READ


@pytest.mark.long
def test_one_row_changes_nothing_else_in_two_thousand_pairs(tmp_path):
    found, failures = results(range(MANY), tmp_path)
    assert not failures
    assert share_read(sum(found.values(), [])) >= FEWEST_READ
    assert min(map(share_read, found.values())) >= FEWEST_READ_OF_ONE


@pytest.mark.parametrize("name", POINTED)
def test_what_one_row_once_changed(name, tmp_path):
    assert row_by_row.differences(POINTED[name](), tmp_path) == SAME


@pytest.mark.parametrize("name", REFUSABLE)
def test_what_one_row_once_changed_may_be_refused(name, tmp_path):
    assert row_by_row.differences(REFUSABLE[name](), tmp_path) in (SAME, REFUSED)


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
def test_one_row_changes_nothing_else_in_a_file_of_many_blocks(name, tmp_path):
    assert row_by_row.differences(LARGE[name](), tmp_path) == SAME


def is_caught(fault, pair, folder):
    """Whether a planted fault, and nothing else, shows in a pair."""
    if row_by_row.differences(pair, folder, fault) in (SAME, REFUSED):
        return False
    return row_by_row.differences(pair, folder) == SAME


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_told_from_the_rows_is_caught(name, tmp_path):
    fault = PLANTED[name]
    pairs = (pair_of(number) for number in range(MOST_TRIED))
    assert any(is_caught(fault, pair, tmp_path) for pair in pairs if fault.touches(pair))


def test_a_case_is_made_again_by_its_number():
    for number in range(30):
        again, first = neighbours.make(number), neighbours.make(number)
        assert (str(again), again.schema) == (str(first), first.schema)


def header_of(model, source, folder):
    """The header of the model file of a fit, without what follows from the noise."""
    with warnings.catch_warnings():
        # that one row is fitted twice is the point here
        warnings.simplefilter("ignore")
        model.fit(row_by_row.opened(source, folder))
    model.save(folder / "rows.dpflow")
    header, _ = read_model(folder / "rows.dpflow")
    (folder / "rows.dpflow").unlink()
    return {key: value for key, value in header.items() if key not in NOISY}


def fit_both(estimator, pair, folder, **settings):
    """Whether the headers agree; None where a table is refused."""
    told = {"schema": pair.schema, "bounds": pair.bounds, "insecure_test_seed": pair.number}
    model = estimator(1.0, 1e-6, **told, **settings)
    try:
        first, second = (header_of(model, source, folder) for source in pair.sources)
    except InputError:
        return None
    return first == second


def first_agreement(estimator, reader, folder):
    """Whether the headers agree in the first case without a schema that a reader reads."""
    pairs = (pair_of(number) for number in range(MANY))
    bare = (pair for pair in pairs if pair.bounds is not None and pair.reader == reader)
    agreed = (fit_both(estimator, pair, folder) for pair in bare)
    return next(result for result in agreed if result is not None)


@pytest.mark.parametrize("name", [name for name in POINTED if "bounds alone" in name])
def test_the_file_of_a_fit_says_the_same(name, tmp_path):
    assert fit_both(DPHistogram, POINTED[name](), tmp_path) is True


@pytest.mark.long
@pytest.mark.parametrize("reader", dict.fromkeys(neighbours.READERS))
@pytest.mark.parametrize("estimator", [DPHistogram, DPGaussian])
def test_the_file_of_a_fit_says_the_same_for_every_reader(estimator, reader, tmp_path):
    assert first_agreement(estimator, reader, tmp_path) is True


@pytest.mark.long
def test_the_file_of_a_mixed_fit_says_the_same(tmp_path):
    pairs = [pair_of(number) for number in range(30)]
    mixed = [pair for pair in pairs if pair.schema is not None and pair.schema.is_mixed]
    agreed = [
        fit_both(DPAutoregressive, pair, tmp_path, steps=2, batch_size=1) for pair in mixed[:4]
    ]
    assert False not in agreed
    assert agreed.count(True) >= 2
