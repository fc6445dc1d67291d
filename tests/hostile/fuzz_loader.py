"""Coverage-guided mutation of model files by atheris; a program for the tests.

Usage: fuzz_loader.py FOLDER SECONDS. Exits with code 0 if, for so long, every file that
atheris made was loaded or refused. Atheris rewrites what is imported while it watches, so
this runs in a process of its own.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import atheris  # noqa: E402

with atheris.instrument_imports(include=["dpflows.files", "dpflows.anomaly.persistence"]):
    import dpflows.anomaly.persistence as persistence
    import dpflows.files as files

from dpflows.errors import InputError
from hostile.mutating import SENTINEL, opened, sealed  # noqa: E402

SEALED = 1


def one(content: bytes) -> None:
    """Load one file; its first byte says whether it gets a fitting digest."""
    path = FOLDER / "fuzzed.bin"
    path.write_bytes(_sealed(content[1:]) if content[:1] == bytes([SEALED]) else content[1:])
    for load in (files.read_model, persistence.load):
        try:
            load(path)
        except InputError as refusal:
            line = str(refusal)
            if "\n" in line or SENTINEL in line:
                raise RuntimeError("a refusal has several lines or quotes the file") from refusal


def _sealed(content: bytes) -> bytes:
    """The same content with a digest that fits, where it can be taken apart at all."""
    try:
        return sealed(opened(content))
    except Exception:  # atheris made no container of it
        return content


def _seeds(folder: Path) -> Path:
    """The sound files, plain and to be sealed, from which atheris starts."""
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for path in folder.glob("*.dpflow"):
        for mark in (0, SEALED):
            (corpus / f"{path.stem}-{mark}").write_bytes(bytes([mark]) + path.read_bytes())
    return corpus


if __name__ == "__main__":
    FOLDER = Path(sys.argv[1])
    # a clock on the wall, on a machine that may be shared
    limits = ["-timeout=30", "-rss_limit_mb=4096", "-max_len=20000", "-print_final_stats=1"]
    limits += [f"-max_total_time={sys.argv[2]}", f"-artifact_prefix={FOLDER}/found-"]
    atheris.Setup([sys.argv[0], *limits, str(_seeds(FOLDER))], one)
    atheris.Fuzz()
