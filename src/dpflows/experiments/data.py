"""Data sets by name: generated, read from a folder, or downloaded on request.

Generated sets are drawn in standardised units: shift and scale are the mean and standard
deviation of the generating distribution itself, derived analytically, so no statistic of the
drawn rows is used and the units are public. The bounds are public as well: each
distribution exceeds them with probability below 1e-9 per row, and such a row is clipped.

Tables are read in place from a folder that the user names. Bounds are public knowledge about what
was measured, never read from the rows, except where ``bounds_read`` says so: such a table serves to
compare methods, not to claim privacy.

Downloads happen only on request. Every file has a checksum, and one that does not match is refused;
files are stored in the layout that ``read_real`` expects.
"""

import dataclasses
import hashlib
import math
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd
from jaxtyping import Float, Float64

from dpflows.errors import InputError
from dpflows.files import write_atomically
from dpflows.table.schema import Schema

_RAW = "https://raw.githubusercontent.com"
_PAPER = f"{_RAW}/DPFlows/dp-flows/f68ffdd203030051cb2478b6bcca1ceeadf0c94f"
_PAPER_SETS = f"{_PAPER}/flows/research/dp-flows/datasets"
_ADBENCH = f"{_RAW}/Minqi824/ADBench/3dac8221081e190f157d78e93bfa8867f90d0965"
_LABELLED = f"{_ADBENCH}/adbench/datasets/Classical"
_POWER = f"{_RAW}/Ruhanr19/ubiquitous-octo-waddle/91e16b1b7299a72aca0cf6c52abe4c98b47deae2"
_CENSUS = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
_SECONDS = 60
_CHUNK = 1 << 20
_MOST_BYTES = 1 << 28


@final
@dataclasses.dataclass(frozen=True)
class Source:
    """One file: its address, its checksum, and its path."""

    address: str
    checksum: str
    place: str


def _fold(number: int, checksum: str) -> Source:
    address = f"{_PAPER_SETS}/lifesci/test/{number}.csv"
    return Source(address, checksum, f"lifesci/paper_test_folds/{number}.csv")


def _toy_file(name: str, checksum: str) -> Source:
    return Source(f"{_PAPER_SETS}/{name}/{name}.csv", checksum, f"toy/{name}.csv")


def _labelled_file(name: str, checksum: str) -> Source:
    return Source(f"{_LABELLED}/{name}.npz", checksum, f"adbench/{name}.npz")


def _census_file(name: str, checksum: str) -> Source:
    return Source(f"{_CENSUS}/{name}", checksum, f"adult/{name}")


_FOLD_CHECKSUMS = (
    "82d434d5bb30c3ca1c9caf38412ed9a44a1c7f2ad1b4db60d3ad2469cf563318",
    "70825e974e06ad772b7bb34071b3e9a9da86b6f7bdd49cc4812079f9451cc52a",
    "c6c3c50836c86765e02f334ded7fe51338842896a84ed51352e30a0d7983e70a",
    "ef496548e1500d160aad55d21e1282e11b1a23fa413c269f18c85c247c8e9b2c",
    "5efbe158e04af1be7b83a5a25a8e75dc392f01fd3407e0204fdda467a701cd30",
    "700de38b659bae8e8ba9e224e33b23e6b1849d708ff7f86da7f1181af1d43003",
    "d42d23e0f4ac0919a11bd9311651dfc274204c5d3c82d797d8c59b63c1c7b680",
    "fa87598851449ac6f1bb2ad84ce014c8ad7082d3f178ae96fcf1bdd45e1a1e9c",
    "e14518b9765d350244db4870207d57bf6ce69eb24873374df26cf0e8edccb03e",
    "d1ea855fd9124362b6d2457a3d680cb2582f24eae2a2a2a314b14f33b12899fc",
)

#: The files of each data set.
SOURCES: dict[str, tuple[Source, ...]] = {
    "life-science": tuple(_fold(i, checksum) for i, checksum in enumerate(_FOLD_CHECKSUMS, 1)),
    "half-moons": (
        _toy_file("moons", "f3a46355b4cc3a178f50a3f1a0cf3bf801e2b0c87f384ce0435b26966f66feb1"),
    ),
    "gaussians": (
        _toy_file("gaussian", "163dcc647e4b5fff59443e616bf88b9cc8606e45b6e1fa0c63c05ceb88a71991"),
    ),
    "pinwheel": (
        _toy_file("pinwheel", "a8fa5b032af3d14769bd6527ed0753f97b9efa0476dc1504296729dbcd2c0e61"),
    ),
    "gowalla": (
        Source(
            f"{_PAPER_SETS}/gowalla/gowalla.csv",
            "d94fbd9e04780eae4b95da74b09f08eab4f9b74fe3a2f6ff9abd48a9673c7c99",
            "gowalla/gowalla.csv",
        ),
    ),
    "power": (
        Source(
            f"{_POWER}/household_power_consumption.zip",
            "fc6fca72b4d1f168af17b2bb7176abf81c4f358112a0fc7b8b927544ae205705",
            "power/household_power_consumption_2007H1.zip",
        ),
    ),
    "adult": (
        _census_file(
            "adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"
        ),
        _census_file(
            "adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"
        ),
    ),
    "mammography": (
        _labelled_file(
            "23_mammography", "a0308ac9712d78321073b1c2dc98dc37665c0f35c1cc33019416fe8f8d7de7ea"
        ),
    ),
    "shuttle": (
        _labelled_file(
            "32_shuttle", "26900b0f6be45d9ddb7a402c9b2f956ceda42d23a8ca4cf4406b8bc1352823d1"
        ),
    ),
    "thyroid": (
        _labelled_file(
            "38_thyroid", "8de161b3f235b7647bb0b39a836d983ff61d67bf234edac461da2d71e889cb87"
        ),
    ),
    "cardio": (
        _labelled_file(
            "6_cardio", "bc5009bde6930b4d298b594f31b34485a9a17210cff0e8fb00a8c3068b885a2d"
        ),
    ),
}


def download(
    sources: Sequence[Source], folder: Path, *, told: Callable[[str], None] | None = None
) -> Path:
    """Fetch what is not there yet, and return the folder.

    Args:
        sources: Which files.
        folder: The cache.
        told: Called with the address of each file that is fetched.

    Guarantee:
        A file appears only whole and with the checksum it must have. Nothing but the
        addresses of the files is sent.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> download([], folder) == folder
        True
    """
    for source in sources:
        place = folder / source.place
        if not place.exists():
            if told:
                told(source.address)
            _fetch(source, place)
    return folder


def _fetch(source: Source, place: Path) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(source.address, timeout=_SECONDS) as reply:
            _keep(reply, source, place)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as problem:
        raise InputError(
            f"cannot download {source.address} ({type(problem).__name__}); check the connection, "
            "or use --data with a folder that holds the files"
        ) from None


def _keep(reply: Any, source: Source, place: Path) -> None:
    digest, size = hashlib.sha256(), 0
    with write_atomically(place) as file:
        while chunk := reply.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            if size > _MOST_BYTES:
                raise InputError(f"{source.address} is larger than {_MOST_BYTES} bytes; refused")
            file.write(chunk)
        if digest.hexdigest() != source.checksum:
            raise InputError(f"{source.address} has another checksum than expected; refused")


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


TableRows = Float[np.ndarray, "_ columns"]
Vector = Float[np.ndarray, " columns"]

#: What is public about UCI Adult.
ADULT_SCHEMA = Path(__file__).with_name("adult.toml")

#: Tables of numbers of 5 to 64 columns, from the UCI repository, as ``uci/NAME.npz``.
NUMERIC = ("wilt", "kin40k", "pageblocks", "elevators", "parkinsons", "optdigits")

_FOLDS = 10
_MEASUREMENTS = (
    "Global_active_power",
    "Global_reactive_power",
    "Voltage",
    "Global_intensity",
    "Sub_metering_1",
    "Sub_metering_2",
    "Sub_metering_3",
)
_MINUTES = 12
#: An odd number whose multiples are spread evenly over 32 bits (Knuth's hash).
_MULTIPLIER = 2_654_435_761


@final
@dataclasses.dataclass(frozen=True)
class RealTable:
    """A table, its declared box and its folds.

    Attributes:
        rows: The private rows.
        low: Declared lower bounds.
        high: Declared upper bounds.
        delta: As the literature uses it for this table.
        fold: For each row, the fold in which it is a test row, from 1.
        log_unit: Added to a log-density in the rows' units to give the literature's.
        bounds_read: Whether the box was read from the rows.
        in_unit_ball: Whether the rows come scaled by their largest norm.
        anomalies: TableRows that a detector should find, where some are known.
    """

    rows: TableRows
    low: Vector
    high: Vector
    delta: float
    fold: np.ndarray
    log_unit: float = 0.0
    bounds_read: bool = False
    in_unit_ball: bool = False
    anomalies: TableRows | None = None

    def split(self, number: int) -> tuple[TableRows, TableRows]:
        """Training and test rows of one fold."""
        if number not in range(1, _FOLDS + 1):
            raise InputError(f"fold must be from 1 to {_FOLDS}, got {number}")
        return self.rows[self.fold != number], self.rows[self.fold == number]


def read_real(name: str, data: str | Path) -> RealTable:
    """Read a table of ``REAL`` from a folder.

    Args:
        name: A key of ``REAL``.
        data: The folder that holds the files.

    Example:
        >>> read_real("life-science", "missing")
        Traceback (most recent call last):
        dpflows.errors.InputError: the files of life-science are not in the data folder ...
    """
    if name not in REAL:
        raise InputError(f"name must be one of {', '.join(REAL)}, got {name!r}")
    try:
        return REAL[name](Path(data))
    except (OSError, KeyError, ValueError) as problem:
        raise _unreadable(name, problem) from None


def read_adult(data: str | Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Training and test rows of UCI Adult, labels as they are, ``?`` among them.

    Args:
        data: The folder that holds ``adult/adult_all.csv.gz``, whose column ``split`` says
            which rows are which, or the files ``adult/adult.data`` and ``adult/adult.test``.

    Example:
        >>> read_adult("missing")
        Traceback (most recent call last):
        dpflows.errors.InputError: the files of adult are not in the data folder ...
    """
    folder = Path(data) / "adult"
    try:
        prepared = folder / "adult_all.csv.gz"
        if not prepared.exists():
            return _census(folder / "adult.data"), _census(folder / "adult.test")
        rows = pd.read_csv(prepared, na_filter=False)
        parts = (rows[rows["split"] == side].drop(columns="split") for side in ("train", "test"))
        train, test = parts
    except (OSError, KeyError, ValueError) as problem:
        raise _unreadable("adult", problem) from None
    return train, test


def _census(path: Path) -> pd.DataFrame:
    """A file of the archive: no header, a remark in the first line, dots after labels."""
    names = Schema.read(ADULT_SCHEMA).names
    rows = pd.read_csv(
        path, names=names, skipinitialspace=True, na_filter=False, comment="|", index_col=False
    )
    return rows.assign(income=rows["income"].str.rstrip("."))


def _unreadable(name: str, problem: Exception) -> InputError:
    return InputError(
        f"the files of {name} are not in the data folder or cannot be read "
        f"({type(problem).__name__}); use --data with a folder that holds them, or --download to "
        "download them"
    )


def _life_science(data: Path) -> RealTable:
    """Ten principal components in the unit ball, with the folds of the DP-EM authors."""
    if (data / "lifesci" / "lifesci.npz").exists():
        with np.load(data / "lifesci" / "lifesci.npz") as file:
            rows, fold = file["X_scaled"], file["paper_test_fold"]
    else:
        parts = [
            _comma_separated(data / "lifesci" / "paper_test_folds" / f"{i}.csv")
            for i in range(1, _FOLDS + 1)
        ]
        rows = np.concatenate(parts)
        fold = np.repeat(np.arange(1, _FOLDS + 1), [len(part) for part in parts])
    box = (np.full(10, -1.0), np.full(10, 1.0))
    return RealTable(rows, *box, 1.52e-5, fold, in_unit_ball=True)


def _toy(name: str) -> Callable[[Path], RealTable]:
    """The rows of the paper's two-dimensional pictures; no coordinate comes near 4."""

    def read(data: Path) -> RealTable:
        rows = _comma_separated(data / DATASETS[name].file)
        return RealTable(rows, np.full(2, -4.0), np.full(2, 4.0), 3.7e-5, _folds(len(rows)))

    return read


def _power(data: Path) -> RealTable:
    """A household's meter, six columns, dithered within the meter's resolution.

    Bounds are physical: a 60 A connection, the mains voltage, watt-hours in a minute, the
    minutes of a day. Densities are stated per standardised unit.
    """
    rows = _meter(data)[:, [0, 2, 4, 5, 6, 7]]
    rows = rows[np.argsort(_scattered(len(rows)))[:100_000]]
    rows = rows + np.random.default_rng().uniform(size=rows.shape) * [0.001, 0.01, 1, 1, 1, 1]
    low = np.array([0.0, 200.0, 0.0, 0.0, 0.0, 0.0])
    high = np.array([15.0, 260.0, 100.0, 100.0, 100.0, 1440.0])
    return RealTable(rows, low, high, 1.11e-5, _folds(len(rows)), _log_unit(rows))


def _power_windows(data: Path) -> RealTable:
    """Active power and voltage of twelve minutes in a row: 24 columns that hang together."""
    rows = _meter(data)[:, [0, 2]]
    whole = len(rows) // _MINUTES * _MINUTES
    rows = rows[:whole] + np.random.default_rng().uniform(size=(whole, 2)) * [0.001, 0.01]
    rows = rows.reshape(-1, 2 * _MINUTES)
    low, high = np.tile([0.0, 200.0], _MINUTES), np.tile([15.0, 260.0], _MINUTES)
    delta = len(rows) ** -1.1
    return RealTable(rows, low, high, delta, _folds(len(rows)), _log_unit(rows))


def _meter(data: Path) -> TableRows:
    """Seven measurements and the minute of the day, as prepared or from the archive."""
    prepared = data / "power" / "power_2007H1_clean.npz"
    if prepared.exists():
        with np.load(prepared) as file:
            return file["X"]
    archive = data / "power" / "household_power_consumption_2007H1.zip"
    table = pd.read_csv(archive, na_values="?", low_memory=False).dropna()
    clock = table["Time"].str.split(":", expand=True).astype(int)
    minute = 60 * clock[0] + clock[1]
    return np.column_stack([table[list(_MEASUREMENTS)].to_numpy(float), minute])


def _comma_separated(path: Path) -> TableRows:
    return pd.read_csv(path, header=None).to_numpy(float)


def _gowalla(data: Path) -> RealTable:
    """Check-ins all over the world, jittered at the file's rounding.

    The file is standardised; its box is the globe in the same units.
    """
    rows = _comma_separated(data / "gowalla" / "gowalla.csv")
    rows = rows + np.random.default_rng().uniform(-5e-7, 5e-7, size=rows.shape)
    centre, scale = np.array([36.22312102, -97.45721842]), np.array([7.75045576, 35.43484215])
    low, high = (np.array(side) for side in ([-90.0, -180.0], [90.0, 180.0]))
    box = ((low - centre) / scale, (high - centre) / scale)
    return RealTable(rows, *box, 1.11e-5, _folds(len(rows)))


def _labelled(name: str) -> Callable[[Path], RealTable]:
    """The normal rows of a labelled set, ties broken by a little jitter, in a roomy box."""

    def read(data: Path) -> RealTable:
        """Normal rows to fit and split, anomalies beside them."""
        with np.load(data / "adbench" / f"{name}.npz") as file:
            rows, anomalies = (file["X"][file["y"] == label] for label in (0, 1))
        spread = rows.std(axis=0)
        # both kinds alike, or a detector could tell them by the jitter
        rows, anomalies = (_jittered(kind, 0.01 * spread) for kind in (rows, anomalies))
        low, high = rows.min(axis=0), rows.max(axis=0)
        room = high - low
        delta = len(rows) ** -1.1
        box = (low - room / 2, high + room / 2)
        fold = _folds(len(rows))
        unit = _log_unit(rows)
        return RealTable(rows, *box, delta, fold, unit, bounds_read=True, anomalies=anomalies)

    return read


def read_numeric(path: str | Path) -> RealTable:
    """Read a table of numbers of any origin; its box is read from the rows, with room around.

    Columns of few distinct values are spread over their steps.

    Args:
        path: An ``.npz`` file whose array ``X`` holds the rows.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp(), "rows.npz")
        >>> np.savez(file, X=np.random.default_rng().normal(size=(50, 2)))
        >>> read_numeric(file).bounds_read
        True
    """
    with np.load(path) as file:
        rows = np.stack([_filled(column) for column in file["X"].astype(float).T], axis=1)
    low, high = rows.min(axis=0), rows.max(axis=0)
    room = np.where(high > low, high - low, 1.0) / 2
    box = (low - room, high + room)
    return RealTable(rows, *box, 1e-6, _folds(len(rows)), _log_unit(rows), bounds_read=True)


def _uci(name: str) -> Callable[[Path], RealTable]:
    return lambda data: read_numeric(data / "uci" / f"{name}.npz")


def _filled(column: np.ndarray) -> np.ndarray:
    """A column of few distinct values as one of a density: even within each value's step."""
    values = np.unique(column)
    if len(values) >= len(column) / 5:
        return column
    # values that differ by rounding alone are no step
    steps = np.diff(values)[np.diff(values) > 1e-6 * np.ptp(values)]
    width = max(steps.min(initial=np.inf), 0.01 * column.std())
    width = width if np.isfinite(width) else 1.0
    return column + np.random.default_rng().uniform(-0.5, 0.5, len(column)) * width


def _jittered(rows: TableRows, spread: Vector) -> TableRows:
    return rows + np.random.default_rng().normal(size=rows.shape) * spread


def _folds(rows: int) -> np.ndarray:
    return np.argsort(np.argsort(_scattered(rows))) % _FOLDS + 1


def _scattered(rows: int) -> np.ndarray:
    """One number per row, the same in every run and unrelated to the rows' order."""
    return np.arange(rows) * _MULTIPLIER % 2**32


def _log_unit(rows: TableRows) -> float:
    """What turns a density per unit into one per standard deviation."""
    return float(np.log(rows.std(axis=0)).sum()) if len(rows) else math.nan


REAL: dict[str, Callable[[Path], RealTable]] = {
    "life-science": _life_science,
    "power": _power,
    "power-windows": _power_windows,
    "gowalla": _gowalla,
    "half-moons": _toy("half-moons"),
    "gaussians": _toy("gaussians"),
    "pinwheel": _toy("pinwheel"),
    "mammography": _labelled("23_mammography"),
    "shuttle": _labelled("32_shuttle"),
    "thyroid": _labelled("38_thyroid"),
    "cardio": _labelled("6_cardio"),
    **{name: _uci(name) for name in NUMERIC},
}
