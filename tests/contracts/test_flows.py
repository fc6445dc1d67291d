"""What every flow family promises, in 1 to 10 columns and both precisions.

The flows are perturbed far from their identity start. One compiled probe per case feeds
all checks, because compilation is most of the time. Seeds are fixed; the stated
false-alarm rates are those over fresh seeds.
"""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import special, stats

from dpflows.models import ARCHITECTURES, Architecture, bijections
from dpflows.models.density import Defended, gaussian_mixture
from models.perturbing import perturbed

DRAWS = 10_000
JACOBIANS = 16
FALSE_ALARM = 1e-4
#: Rows that no sane table holds; nothing may turn into NaN on them.
HOSTILE = (0.0, -4.0, 4.0, 1e3, -1e3, 1e6, -1e6)
GRID_SIDE = {1: 2001, 2: 181}


SLOW_TO_COMPILE = ("nsf", "nsf-coupling", "bnaf")

# Short rows first: `short_rows` then gives a case the place it has among all cases, and
# pytest runs all checks of a case together.
CASES = [
    (name, dim, x64) for dim in (1, 2, 5, 10) for name in ARCHITECTURES for x64 in (False, True)
]


def _weighed(case):
    """Every case costs a compilation: most of them are left to the long suite."""
    name, dim, x64 = case
    is_quick = (dim, x64) == (5, True) and name not in SLOW_TO_COMPILE
    is_second_helping = (dim, x64) != (2, False) and not is_quick
    return pytest.param(case, marks=pytest.mark.long) if is_second_helping else case


short_rows = pytest.mark.parametrize(
    "probe",
    [_weighed(case) for case in CASES if case[1] <= 2],
    ids=lambda case: _label(case),
    indirect=True,
    scope="module",
)


def _label(case):
    name, dim, x64 = case
    return f"{name}-{dim}-{'f64' if x64 else 'f32'}"


@pytest.fixture(scope="module", params=map(_weighed, CASES), ids=_label)
def probe(request):
    return _probe(*request.param)


class Probe(NamedTuple):
    """Everything one compiled call tells about a flow, as numpy arrays."""

    latent: np.ndarray
    rows: np.ndarray
    log_det: np.ndarray
    back: np.ndarray
    log_det_back: np.ndarray
    log_prob: np.ndarray
    jacobians: np.ndarray
    rival: np.ndarray
    rival_log_prob: np.ndarray
    grid: np.ndarray
    grid_log_prob: np.ndarray
    hostile_log_prob: np.ndarray
    hostile_gradients: np.ndarray


@functools.cache
def _fresh(name, dim):
    shape = Architecture(name, width=16, depth=1, blocks=2, knots=4)
    return shape.build(dim, key=jr.key(7))


def _probe(name, dim, x64):
    with jax.enable_x64(x64):
        flow = perturbed(_fresh(name, dim), seed=dim)
        latent = jr.normal(jr.key(3), (DRAWS, dim))
        probe = Probe(*map(np.asarray, _measure(flow, latent, jnp.asarray(_unit_grid(dim)))))
    assert probe.rows.dtype == (np.float64 if x64 else np.float32)
    return probe


@eqx.filter_jit(
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
    }
)
def _measure(flow, latent, grid):
    rows, log_det = jax.vmap(flow.bijection.transform_and_log_det)(latent)
    grid = grid * 1.3 * jnp.abs(rows).max(axis=0)
    hostile = jnp.outer(jnp.asarray(HOSTILE), jnp.ones(flow.shape))
    rival = _near(rows[: DRAWS // 2], latent[::-1][: DRAWS // 2])
    asked = jnp.concatenate([rows, rival, grid, hostile])

    def score(x):
        z, log_det = flow.bijection.inverse_and_log_det(x)
        return jnp.stack([*z, log_det, flow.base_dist.log_prob(z) + log_det])

    scores = jax.vmap(score)(asked)
    back, log_det_back, log_prob = scores[:, :-2], scores[:, -2], scores[:, -1]
    jacobians = jax.vmap(jax.jacrev(score))(jnp.concatenate([rows[:JACOBIANS], hostile]))
    first, second = DRAWS + len(rival), DRAWS + len(rival) + len(grid)
    return (
        *(latent, rows, log_det, back[:DRAWS], log_det_back[:DRAWS], log_prob[:DRAWS]),
        *(jacobians[:JACOBIANS, :-2], rival, log_prob[DRAWS:first]),
        *(grid, log_prob[first:second], log_prob[second:], jacobians[JACOBIANS:, -1]),
    )


def _near(rows, noise):
    """A row of the kernel density estimate around each row: its density is known, too."""
    spread = jnp.cov(rows, rowvar=False).reshape(rows.shape[1], rows.shape[1])
    return rows + _bandwidth(rows) * noise @ jnp.linalg.cholesky(spread).T


def _bandwidth(rows):
    return 0.6 * len(rows) ** (-1 / (rows.shape[1] + 4))


def _unit_grid(dim):
    if dim not in GRID_SIDE:
        return np.zeros((1, dim))
    axis = np.linspace(-1, 1, GRID_SIDE[dim])
    return np.stack([mesh.ravel() for mesh in np.meshgrid(*[axis] * dim)], axis=1)


def _cell(grid):
    """The volume of one grid cell."""
    return np.prod(2 * grid.max(axis=0) / (GRID_SIDE[grid.shape[1]] - 1))


def _room(probe, single):
    """The tolerance in single precision; a million times less in double."""
    return single * (1 if probe.rows.dtype == np.float32 else 1e-6)


def test_round_trip(probe):
    room = _room(probe, 2e-4)
    np.testing.assert_allclose(probe.back, probe.latent, rtol=room, atol=room)
    np.testing.assert_allclose(probe.log_det_back, -probe.log_det, rtol=room, atol=5 * room)


def test_log_det_is_that_of_the_jacobian(probe):
    _, log_det = np.linalg.slogdet(probe.jacobians.astype(float))
    room = _room(probe, 1e-4)
    np.testing.assert_allclose(probe.log_det_back[:JACOBIANS], log_det, rtol=room, atol=room)


def test_the_perturbed_flow_is_not_trivial(probe):
    assert np.abs(probe.rows - probe.latent).max() > 0.1


def test_hostile_rows_give_no_nan(probe):
    assert not np.isnan(probe.hostile_log_prob).any()
    assert np.isfinite(probe.hostile_gradients).all()


@short_rows
def test_density_integrates_to_one(probe):
    mass = np.exp(probe.grid_log_prob.astype(float)).sum() * _cell(probe.grid)
    assert mass == pytest.approx(1, abs=3e-3)


def _bridge_score(probe, mistake=0.0):
    """A two-sample test of rows from density p against rows from a known density q.

    The mean of q/(p+q) over rows from p equals the mean of p/(p+q) over rows from q if and
    only if p is normalised and is the density of its rows. Both lie in [0, 1]. Returns the
    difference in standard errors; q is a kernel density estimate from the half of the rows that is
    left out: a single Gaussian would have nothing in common with a strongly bent flow.
    """
    half = DRAWS // 2
    centres = probe.rows[:half].astype(float)
    rival = stats.gaussian_kde(centres.T, bw_method=_bandwidth(centres))
    gap = rival.logpdf(probe.rows[half:].T) - probe.log_prob[half:] - mistake
    ours = special.expit(gap.astype(float))
    theirs = special.expit(probe.rival_log_prob + mistake - rival.logpdf(probe.rival.T))
    error = np.sqrt(ours.var() / len(ours) + theirs.var() / len(theirs))
    return abs(ours.mean() - theirs.mean()) / error


def test_samples_follow_the_density(probe):
    """False-alarm rate 1e-4 per case, by the normal limit of bounded means."""
    assert _bridge_score(probe) < stats.norm.isf(FALSE_ALARM / 2)


def test_a_forgotten_scale_is_rejected(probe):
    """The twin: one column's Jacobian, a scale of 1.3, left out of the density."""
    score = _bridge_score(probe, mistake=np.log(1.3))
    assert score > stats.norm.isf(FALSE_ALARM / 2)


def _cell_p_value(rows, probe):
    """Chi-square of the rows in coarse cells against the density integrated over them."""
    edges = [_between(*columns) for columns in zip(probe.rows.T, probe.grid.T, strict=True)]
    mass = np.exp(probe.grid_log_prob.astype(float)) * _cell(probe.grid)
    expected = len(rows) * _count(probe.grid, edges, mass / mass.sum())
    kept = expected > 5
    observed = _count(rows, edges, np.ones(len(rows)))
    pairs = [np.append(c[kept], c[~kept].sum() + 1e-9) for c in (observed, expected)]
    return stats.chisquare(*pairs).pvalue


def _between(column, ticks):
    """Quantiles of a column, moved half-way between the grid's ticks: cells hold whole ticks."""
    ticks = np.unique(ticks)
    places = np.searchsorted(ticks, np.quantile(column, np.linspace(0.02, 0.98, 7)))
    return (ticks[places] + ticks[places - 1]) / 2


def _count(rows, edges, weights):
    cells = [np.searchsorted(edge, column) for edge, column in zip(edges, rows.T, strict=True)]
    flat = np.ravel_multi_index(cells, [len(edge) + 1 for edge in edges])
    size = int(np.prod([len(edge) + 1 for edge in edges]))
    return np.bincount(flat, weights=weights, minlength=size)


@short_rows
def test_samples_fill_cells_as_the_density_says(probe):
    """False-alarm rate about 1e-4 per case: chi-square goodness of fit."""
    assert _cell_p_value(probe.rows, probe) > FALSE_ALARM


@short_rows
def test_stretched_samples_do_not_fill_them(probe):
    """The twin: rows stretched by a tenth about their mean."""
    middle = probe.rows.mean(axis=0)
    assert _cell_p_value(middle + 1.1 * (probe.rows - middle), probe) < FALSE_ALARM


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_starts_near_the_identity(name):
    rows = jr.normal(jr.key(0), (500, 2))
    change = jax.vmap(_fresh(name, 2).bijection.transform)(rows) - rows
    assert float(jnp.sqrt(jnp.mean(change**2))) < 0.25


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_builds_share_compiled_code(name):
    """Two fresh flows differ in arrays alone, so nothing is compiled twice."""
    one = eqx.partition(_fresh(name, 2), eqx.is_array)[1]
    shape = Architecture(name, width=16, depth=1, blocks=2, knots=4)
    two = eqx.partition(shape.build(2, key=jr.key(8)), eqx.is_array)[1]
    assert jax.tree.structure(one) == jax.tree.structure(two)
    assert jax.tree.leaves(one) == jax.tree.leaves(two)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_builds_in_the_precision_of_the_day(name):
    with jax.enable_x64(True):
        flow = Architecture(name, width=4, depth=1, blocks=1, knots=2).build(1, key=jr.key(0))
        kinds = {leaf.dtype for leaf in jax.tree.leaves(eqx.filter(flow, eqx.is_inexact_array))}
    assert kinds == {np.dtype(np.float64)}


def _calls_of_lapack(name):
    """Whether densities, gradients or samples of many rows call a solver of LAPACK."""
    two = np.ones(2), np.zeros((2, 3)), np.stack([np.eye(3)] * 2)
    model = Defended(_fresh(name, 3), gaussian_mixture(*two))
    dynamic, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(dynamic, rows):
        return jax.vmap(eqx.combine(dynamic, static).log_prob)(rows).sum()

    def drawn(dynamic, key):
        return eqx.combine(dynamic, static).sample(key, 8)

    programs = (jax.grad(loss), jnp.zeros((8, 3))), (drawn, jr.key(0))
    return any("lapack" in jax.jit(f).lower(dynamic, rest).as_text() for f, rest in programs)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_solver_is_called_for_many_rows_at_once(name):
    """Up to jaxlib 0.10 such a call in a compiled program may wait for itself for ever."""
    assert not _calls_of_lapack(name)


def test_the_test_rejects_a_solver_of_lapack(monkeypatch):
    def solve(matrix, target):
        return jax.scipy.linalg.solve_triangular(matrix, target, lower=True)

    monkeypatch.setattr(bijections, "solve_lower", solve)
    assert _calls_of_lapack("glow")
