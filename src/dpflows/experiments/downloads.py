"""Download of public data sets, only on request.

Every file has a checksum; one that does not match is refused. Files are stored in a cache in
the layout that ``read_real`` expects, so a folder with the same files serves as well.
"""

import dataclasses
import hashlib
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

from dpflows.errors import InputError
from dpflows.files import write_atomically

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


def _toy(name: str, checksum: str) -> Source:
    return Source(f"{_PAPER_SETS}/{name}/{name}.csv", checksum, f"toy/{name}.csv")


def _labelled(name: str, checksum: str) -> Source:
    return Source(f"{_LABELLED}/{name}.npz", checksum, f"adbench/{name}.npz")


def _census(name: str, checksum: str) -> Source:
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
        _toy("moons", "f3a46355b4cc3a178f50a3f1a0cf3bf801e2b0c87f384ce0435b26966f66feb1"),
    ),
    "gaussians": (
        _toy("gaussian", "163dcc647e4b5fff59443e616bf88b9cc8606e45b6e1fa0c63c05ceb88a71991"),
    ),
    "pinwheel": (
        _toy("pinwheel", "a8fa5b032af3d14769bd6527ed0753f97b9efa0476dc1504296729dbcd2c0e61"),
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
        _census("adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
        _census("adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
    ),
    "mammography": (
        _labelled(
            "23_mammography", "a0308ac9712d78321073b1c2dc98dc37665c0f35c1cc33019416fe8f8d7de7ea"
        ),
    ),
    "shuttle": (
        _labelled("32_shuttle", "26900b0f6be45d9ddb7a402c9b2f956ceda42d23a8ca4cf4406b8bc1352823d1"),
    ),
    "thyroid": (
        _labelled("38_thyroid", "8de161b3f235b7647bb0b39a836d983ff61d67bf234edac461da2d71e889cb87"),
    ),
    "cardio": (
        _labelled("6_cardio", "bc5009bde6930b4d298b594f31b34485a9a17210cff0e8fb00a8c3068b885a2d"),
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
