"""Mutations of model files that know what a model file is made of.

Half of them damage the bytes. The others change the content and seal it with a fitting
digest, as a forger would, so that it reaches the code behind the container.
"""

import copy
import hashlib
import json
import random
import re
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

SENTINEL = "patient-4711"
KINDS = ("float32", "float64", "bool", "int8", "int64", "uint8", "uint64")
_NAMES = {"float32": "F32", "float64": "F64", "bool": "BOOL"}

#: What is put in the place of any part of a header.
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 255, 2**31, 2**63, -(2**63), 10**30, 10**400),
    *(0.0, -0.0, 0.5, 1.5, -1.5, 1e-320, 1e-9, 1e9, 1e308, -1e308),
    *("", SENTINEL, "nan", "inf", "-1", "../../x", "\x1b[31m", "\0", "x" * 100_000),
    *([], {}, [SENTINEL], {SENTINEL: SENTINEL}, [[]], [None], [0, 1], [1e308] * 1000),
    *("DPFlow", "DPGaussian", "DPEnsembleDetector", "pld", "rdp", "gdp-clt", "replace-one"),
]
#: A header with more is not multiplied any more, or lists of lists would fill this program.
MOST_PLACES = 3000
NUMBERS = [0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324, 1e38, 1e-300]


@dataclass
class Content:
    """What is in a model file."""

    header: dict[str, Any]
    arrays: dict[str, np.ndarray]


def opened(content: bytes) -> Content:
    """Take a sound file apart without the code under test."""
    length = struct.unpack("<Q", content[:8])[0]
    entries, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    document = json.loads(entries.pop("__metadata__")["dpflow"])
    kinds = {short: kind for kind, short in ((k, _short(k)) for k in KINDS)}
    arrays = {
        name: np.frombuffer(data[slice(*entry["data_offsets"])], kinds[entry["dtype"]]).reshape(
            entry["shape"]
        )
        for name, entry in entries.items()
    }
    return Content(document["header"], arrays)


def sealed(content: Content, chance: random.Random | None = None) -> bytes:
    """A file with a fitting digest; with a chance, its entries are forged after that."""
    header = _deepened(json.dumps(content.header, sort_keys=True, separators=(",", ":")))
    digest, entries, data = hashlib.sha256(), {}, b""
    for name, array in sorted(content.arrays.items()):
        raw = array.tobytes()
        shape = json.dumps([name, array.dtype.name, array.shape], separators=(",", ":"))
        digest.update(shape.encode())
        digest.update(raw)
        place = [len(data), len(data) + len(raw)]
        kind = _short(array.dtype.name)
        entries[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": place}
        data += raw
    digest.update(header.encode())
    document = {"format_version": 1, "digest": digest.hexdigest(), "header": content.header}
    if chance is not None:
        _forge(chance, entries, document)
    text = _deepened(json.dumps(document, sort_keys=True, separators=(",", ":")))
    return _joined({"__metadata__": {"dpflow": text}} | entries, data)


def mutated(chance: random.Random, content: bytes) -> tuple[str, bytes]:
    """The name of a mutation, and the mutated file."""
    if chance.random() < 0.35:
        return "bytes", _damaged(chance, content)
    inside = opened(content)
    if chance.random() < 0.15:
        return "entries", sealed(inside, chance)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        part = chance.choice([_change_header, _change_header, _change_arrays])
        part(chance, inside)
    return "sealed", sealed(inside)


def _short(kind: str) -> str:
    return _NAMES.get(kind) or kind.replace("uint", "U").replace("int", "I")


def _joined(entries: dict[str, Any], data: bytes) -> bytes:
    raw = json.dumps(entries, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw + data


def _damaged(chance: random.Random, content: bytes) -> bytes:
    mutant = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 8])):
        at = chance.randrange(len(mutant) + 1)
        until = min(len(mutant), at + chance.choice([0, 1, 4, 8, 100]))
        piece = chance.choice(
            [
                bytes([chance.randrange(256)]),
                chance.randbytes(8),
                struct.pack("<Q", chance.choice([0, 1, 2**24, 2**31, 2**63, 2**64 - 1])),
                mutant[at:until] * 2,
                SENTINEL.encode(),
                b"[" * chance.choice([10, 10_000]),
                b"",
            ]
        )
        mutant[at:until] = piece
    if chance.random() < 0.2 and mutant:
        flipped = chance.randrange(len(mutant))
        mutant[flipped] ^= 1 << chance.randrange(8)
    end = chance.randrange(len(mutant) + 1) if chance.random() < 0.2 else len(mutant)
    return bytes(mutant[:end])


def _forge(chance: random.Random, entries: dict[str, Any], document: dict[str, Any]) -> None:
    place = chance.choice([document, *entries.values()])
    key = chance.choice([*place, SENTINEL])
    shapes = [[2**62, 0], [2**32, 2**32], [-1], [1] * 50, [0], [], [2**80]]
    place[key] = chance.choice([*VALUES, *shapes, [0, 2**60], [-8, 0], "F16", "F64", "BOOL"])


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Every container of a tree with each of its keys."""
    keys = tree.keys() if isinstance(tree, dict) else range(len(tree))
    found = [(tree, key) for key in keys]
    inner = [tree[key] for key in keys if isinstance(tree[key], dict | list) and tree[key]]
    return found + [place for part in inner for place in _places(part)]


def _change_header(chance: random.Random, content: Content) -> None:
    places = _places(content.header)
    if not places:
        return
    (tree, key), (other, another) = chance.choice(places), chance.choice(places)
    way = chance.randrange(8)
    if way == 0:
        del tree[key]
    elif way == 1:
        # a copy, or the tree would contain itself
        tree[key] = copy.deepcopy(other[another])
    elif way == 2 and isinstance(tree, dict):
        tree[chance.choice([SENTINEL, "", "\0", str(another)])] = tree.pop(key)
    elif way == 3:
        # a mark, because walking through such a tree would exhaust this program's stack too
        tree[key] = f"@deep {chance.choice([10, 100, 400, 900, 5000])}@"
    elif way == 4 and isinstance(tree, list) and len(places) < MOST_PLACES:
        tree *= chance.choice([0, 2, 1000])
    elif way == 5 and isinstance(tree[key], int | float):
        factor = chance.choice([-1, 0, 0.5, 2, 10, 1000, 10**6, 1e-6, 1e300])
        near = min(max(tree[key], -(10**300)), 10**300)
        tree[key] = chance.choice([int, float])(min(max(near * factor, -1e308), 1e308))
    else:
        tree[key] = copy.deepcopy(chance.choice(VALUES))


def _deepened(text: str) -> str:
    """The text of a header with lists in lists where marks stand for them."""
    return re.sub(r'"@deep (\d+)@"', lambda m: "[" * int(m[1]) + "]" * int(m[1]), text)


def _change_arrays(chance: random.Random, content: Content) -> None:
    arrays = content.arrays
    if not arrays:
        arrays["x"] = np.zeros(2)
    name, other = chance.choice(list(arrays)), chance.choice(list(arrays))
    array = arrays[name]
    way = chance.randrange(9)
    if way == 0:
        del arrays[name]
    elif way == 1:
        arrays[name], arrays[other] = arrays[other], arrays[name]
    elif way == 2:
        arrays[chance.choice([SENTINEL, f"{name}x", "9/mean"])] = arrays.pop(name)
    elif way == 3:
        with np.errstate(all="ignore"):
            arrays[name] = array.astype(chance.choice(KINDS))
    elif way == 4:
        arrays[name] = _reshaped(chance, array)
    elif way == 5:
        arrays[name] = np.resize(array, chance.choice([0, 1, 3, 1000, 300_000]))
    elif array.size and array.dtype.kind == "f":
        changed = array.copy()
        places = slice(None) if way == 6 else chance.randrange(array.size)
        with np.errstate(all="ignore"):
            changed.reshape(-1)[places] = chance.choice(NUMBERS)
        arrays[name] = changed


def _reshaped(chance: random.Random, array: np.ndarray) -> np.ndarray:
    shapes = [array.reshape(-1), array[None], array.T, array[..., None], array[:0]]
    return np.ascontiguousarray(chance.choice(shapes)) if array.ndim else array[None]
