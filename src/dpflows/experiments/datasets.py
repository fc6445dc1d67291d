"""Named data sets, generated on the spot.

Every set is drawn in standardised units: shift and scale are the mean and standard
deviation of the generating law itself, worked out by hand, so no statistic of the
drawn rows is used and the units are public. The bounds are public as well: each
law passes them with probability below 1e-9 per row, and such a row is clipped.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from dpflows.errors import InputError
from dpflows.files import write_atomically

Rows = Float64[np.ndarray, "rows columns"]

PINWHEEL_ARMS, PINWHEEL_RADIAL, PINWHEEL_TANGENTIAL, PINWHEEL_RATE = 5, 0.3, 0.05, 0.25
MOONS_NOISE = 0.05
GAUSSIANS_COUNT, GAUSSIANS_RADIUS, GAUSSIANS_SPREAD = 8, 2.0, 0.2


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A law to draw rows from, with what may be declared about it.

    ``shift`` and ``scale`` are the law's mean and standard deviation before
    standardising, ``low`` and ``high`` the public bounds after it. ``rows`` and
    ``delta`` are those of the published experiments, and ``file`` is where they keep
    their rows in a data folder.

    Example:
        >>> DATASETS["pinwheel"].low, DATASETS["pinwheel"].high
        ((-4.0, -4.0), (4.0, 4.0))
    """

    description: str
    draw: Callable[[int, np.random.Generator], Rows]
    shift: tuple[float, ...]
    scale: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    file: str
    columns: tuple[str, ...] = ("x", "y")
    rows: int = 30_000
    delta: float = 3.7e-5


def generate(name: str, rows: int, *, rng: np.random.Generator) -> Rows:
    """Draw independent rows of a named set, in standardised units.

    Args:
        name: A key of ``DATASETS``.
        rows: How many rows.
        rng: Where the randomness comes from; there is no default.

    Example:
        >>> generate("half-moons", 100, rng=np.random.default_rng()).shape
        (100, 2)
    """
    if name not in DATASETS:
        raise InputError(f"data set must be one of {', '.join(DATASETS)}, got {name!r}")
    if rows < 1:
        raise InputError(f"rows must be at least 1, got {rows}")
    law = DATASETS[name]
    standardised = (law.draw(rows, rng) - np.array(law.shift)) / np.array(law.scale)
    return np.clip(standardised, law.low, law.high)


def draw_into(folder: Path, names: Iterable[str]) -> list[Path]:
    """Draw the rows of named sets into a data folder, where they are not there yet.

    They stay there, so that a run that was stopped goes on with the same rows.

    Returns:
        The files that were written.

    Example:
        >>> import tempfile
        >>> draw_into(Path(tempfile.mkdtemp()), ["half-moons"])[0].name
        'moons.csv'
    """
    places = {name: folder / DATASETS[name].file for name in names}
    missing = {name: place for name, place in places.items() if not place.exists()}
    for name, place in missing.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        rows = generate(name, DATASETS[name].rows, rng=np.random.default_rng())
        with write_atomically(place) as file:
            np.savetxt(file, rows, fmt="%.6f", delimiter=",")
    return list(missing.values())


def _pinwheel(rows: int, rng: np.random.Generator) -> Rows:
    """Arms that start as flat ellipses at radius 1 and are turned by their radius."""
    spread = np.array([PINWHEEL_RADIAL, PINWHEEL_TANGENTIAL])
    along, across = (rng.standard_normal((rows, 2)) * spread + [1.0, 0.0]).T
    arm = rng.integers(PINWHEEL_ARMS, size=rows)
    angle = 2 * math.pi * arm / PINWHEEL_ARMS + PINWHEEL_RATE * np.exp(along)
    cosine, sine = np.cos(angle), np.sin(angle)
    return 10 * np.stack([along * cosine + across * sine, across * cosine - along * sine], axis=1)


def _half_moons(rows: int, rng: np.random.Generator) -> Rows:
    """Two interleaved half circles of radius 1 with Gaussian noise."""
    angle = rng.uniform(0.0, math.pi, rows)
    upper = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    centres = np.where(rng.random((rows, 1)) < 0.5, upper, [1.0, 0.5] - upper)
    return centres + MOONS_NOISE * rng.standard_normal((rows, 2))


def _gaussians(rows: int, rng: np.random.Generator) -> Rows:
    """Equal round Gaussians on a circle about (3, 3)."""
    angle = 2 * math.pi * rng.integers(GAUSSIANS_COUNT, size=rows) / GAUSSIANS_COUNT
    centres = 3 + GAUSSIANS_RADIUS * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return centres + GAUSSIANS_SPREAD * rng.standard_normal((rows, 2))


# By symmetry a coordinate of the pinwheel or of the circle has half the mean square
# radius as its variance. For the moons, integrate cos, sin and their squares over
# the half circle: E[y] = 1/4 and E[y^2] = 5/8 - 1/pi.
_PINWHEEL_SD = 10 * math.sqrt((1 + PINWHEEL_RADIAL**2 + PINWHEEL_TANGENTIAL**2) / 2)
_MOONS_SD = (
    math.sqrt(3 / 4 + MOONS_NOISE**2),
    math.sqrt(5 / 8 - 1 / math.pi - 1 / 16 + MOONS_NOISE**2),
)
_GAUSSIANS_SD = math.sqrt(GAUSSIANS_RADIUS**2 / 2 + GAUSSIANS_SPREAD**2)

DATASETS: dict[str, Dataset] = {
    "pinwheel": Dataset(
        description="five curved arms",
        draw=_pinwheel,
        shift=(0.0, 0.0),
        scale=(_PINWHEEL_SD, _PINWHEEL_SD),
        low=(-4.0, -4.0),
        high=(4.0, 4.0),
        file="toy/pinwheel.csv",
    ),
    "half-moons": Dataset(
        description="two interleaved half circles",
        draw=_half_moons,
        shift=(0.5, 0.25),
        scale=_MOONS_SD,
        low=(-2.5, -2.5),
        high=(2.5, 2.5),
        file="toy/moons.csv",
    ),
    "gaussians": Dataset(
        description="eight round Gaussians on a circle",
        draw=_gaussians,
        shift=(3.0, 3.0),
        scale=(_GAUSSIANS_SD, _GAUSSIANS_SD),
        low=(-2.5, -2.5),
        high=(2.5, 2.5),
        file="toy/gaussian.csv",
    ),
}
