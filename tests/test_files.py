"""Files are whole or absent; hostile ones are refused in one line that quotes nothing."""

import errno
import json
import os
import pickle
import stat
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_st

from dpflows import files
from dpflows.errors import InputError
from dpflows.files import DTYPES, read_model, write_atomically, write_model

SENTINEL = "patient-4711"
HEADER = {"kind": "flow", "note": SENTINEL, "epsilon": 1.5, "events": [{"count": 3}], "none": None}
ARRAYS = {
    SENTINEL: np.arange(6, dtype=np.float32).reshape(2, 3),
    "mask": np.array([True, False]),
    "scalar": np.array(2.5),
    "empty": np.zeros((0, 3)),
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
any_array = st.sampled_from(sorted(DTYPES.values())).flatmap(
    lambda kind: arrays_st.arrays(np.dtype(kind), arrays_st.array_shapes(min_dims=0, max_side=4))
)


@pytest.fixture(scope="module")
def content(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("model") / "model.dpflow"
    write_model(path, header=HEADER, arrays=ARRAYS)
    return path.read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("scratch") / "model.dpflow"


class TestWriteAtomically:
    @pytest.mark.parametrize("failure", [KeyboardInterrupt, SystemExit, ValueError, MemoryError])
    def test_a_failure_keeps_the_old_file_and_leaves_nothing_else(self, tmp_path, failure):
        target = tmp_path / "model.dpflow"
        target.write_bytes(b"old")
        with pytest.raises(failure):
            _write_half(target, failure)
        assert target.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["model.dpflow"]

    def test_only_the_owner_may_read_before_and_after(self, tmp_path):
        with write_atomically(tmp_path / "a") as file:
            assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600

    def test_the_content_is_on_disk_before_the_name_and_the_name_before_the_return(
        self, tmp_path, monkeypatch
    ):
        calls: list[str] = []
        for name in ("fsync", "replace"):
            real = getattr(os, name)
            monkeypatch.setattr(
                os, name, lambda *a, _real=real, _name=name: (calls.append(_name), _real(*a))
            )
        with write_atomically(tmp_path / "a") as file:
            file.write(b"whole")
        assert calls == ["fsync", "replace", "fsync"]
        assert (tmp_path / "a").read_bytes() == b"whole"

    def test_a_full_disk_is_explained_and_leaves_nothing(self, tmp_path, monkeypatch):
        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(InputError, match="No space left"), write_atomically(tmp_path / "a"):
            pass
        assert os.listdir(tmp_path) == []

    def test_a_failure_about_another_file_keeps_its_own_words(self, tmp_path):
        with pytest.raises(FileNotFoundError), write_atomically(tmp_path / "a"):
            (tmp_path / "no" / "input.csv").read_bytes()
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("name", ["no/a", "../no/a", "a/../no/a"])
    def test_a_missing_folder_is_explained(self, tmp_path, monkeypatch, name):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(InputError, match="choose a folder that exists"), write_atomically(name):
            pass

    def test_a_folder_as_target_is_explained(self, tmp_path):
        with pytest.raises(InputError, match="add a file name"), write_atomically(tmp_path):
            pass

    def test_a_name_without_a_folder_is_in_the_current_one(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with write_atomically("a") as file:
            file.write(b"whole")
        assert (tmp_path / "a").read_bytes() == b"whole"


class TestRoundTrip:
    @settings(max_examples=150, deadline=None)
    @given(
        header=st.dictionaries(st.text(), json_values, max_size=4),
        arrays=st.dictionaries(st.text("abc._", min_size=1), any_array, max_size=4),
    )
    def test_everything_comes_back_exactly(self, scratch, header, arrays):
        write_model(scratch, header=header, arrays=arrays)
        read_header, read_arrays = read_model(scratch)
        assert read_header == header
        assert_same_arrays(read_arrays, arrays)

    def test_memory_layout_does_not_matter(self, scratch):
        strided = np.arange(12.0).reshape(3, 4)[:, ::2].T
        swapped = np.arange(3, dtype=">f8")
        write_model(scratch, header={}, arrays={"strided": strided, "swapped": swapped})
        read = read_model(scratch)[1]
        np.testing.assert_array_equal(read["strided"], strided)
        np.testing.assert_array_equal(read["swapped"], swapped)

    def test_equal_content_gives_equal_bytes(self, scratch, content):
        write_model(scratch, header=dict(reversed(HEADER.items())), arrays=ARRAYS)
        assert scratch.read_bytes() == content

    @pytest.mark.parametrize("dtype", ["float16", "complex64", "object", "U3", "datetime64[s]"])
    def test_other_array_types_are_refused(self, scratch, dtype):
        with pytest.raises(InputError, match="'a' must be float, integer or bool"):
            write_model(scratch, header={}, arrays={"a": np.zeros(2).astype(dtype)})

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, np.float32(1), b"x"])
    def test_headers_that_are_not_json_are_refused(self, scratch, value):
        with pytest.raises(InputError, match="plain JSON"):
            write_model(scratch, header={"a": value}, arrays={})

    def test_reserved_array_names_are_refused(self, scratch):
        with pytest.raises(InputError, match="rename"):
            write_model(scratch, header={}, arrays={"__metadata__": np.zeros(2)})


class TestHostileFiles:
    def assert_refused(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        with pytest.raises(InputError) as caught:
            read_model(path)
        message = str(caught.value)
        assert SENTINEL not in message
        assert "\n" not in message
        assert path.name in message

    def test_a_missing_file_and_a_folder(self, tmp_path):
        with pytest.raises(InputError, match="cannot read"):
            read_model(tmp_path / "missing")
        with pytest.raises(InputError, match="regular file"):
            read_model(tmp_path)

    def test_a_pipe_does_not_make_the_reader_wait(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InputError, match="regular file"):
            read_model(tmp_path / "pipe")

    @pytest.mark.parametrize("cut", [0, 1, 7, 8, 9, 50, -1])
    def test_truncated(self, scratch, content, cut):
        self.assert_refused(scratch, content[:cut])

    def test_oversized(self, scratch, content, monkeypatch):
        self.assert_refused(scratch, content + b"\0")
        monkeypatch.setattr(files, "MAX_FILE_BYTES", len(content) - 1)
        self.assert_refused(scratch, content)

    def test_a_pickle_is_not_loaded(self, scratch):
        self.assert_refused(scratch, pickle.dumps(_Bomb()))
        assert not _Bomb.exploded

    @pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**31, 2**24 + 1])
    def test_a_claimed_header_length_is_not_believed(self, scratch, content, length):
        tracemalloc.start()
        self.assert_refused(scratch, struct.pack("<Q", length) + content[8:])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**20

    @pytest.mark.parametrize(
        "change",
        [
            {"dtype": "F16"},
            {"dtype": "BF16"},
            {"dtype": ["F32"]},
            {"dtype": SENTINEL},
            {"shape": [2**62, 0]},
            {"shape": [2**32, 2**32]},
            {"shape": [2**80]},
            {"shape": [-2, -3]},
            {"shape": [1] * 50 + [6]},
            {"shape": [6]},
            {"shape": SENTINEL},
            {"data_offsets": [0, 2**60]},
            {"data_offsets": [2**60, 0]},
            {"data_offsets": [-24, 0]},
            {"data_offsets": [0]},
        ],
    )
    def test_forged_array_entries(self, scratch, content, change):
        entries, data = _split(content)
        entries[SENTINEL] |= change
        self.assert_refused(scratch, _join(json.dumps(entries), data))

    @pytest.mark.parametrize(
        "text",
        [
            "[]",
            "{}",
            '{"__metadata__": 3}',
            '{"__metadata__": {"dpflow": 3}}',
            '{"__metadata__": {"dpflow": "[]"}}',
            '{"__metadata__": {"dpflow": "{}"}}',
            '{"__metadata__": {"dpflow": "{\\"format_version\\": true}"}}',
            '{"__metadata__": {"dpflow": "{\\"format_version\\": 1}"}}',
            '{"__metadata__": {"dpflow": "{\\"format_version\\": 1, \\"header\\": 1e999}"}}',
            '{"__metadata__": {"dpflow": "{\\"format_version\\": 1, \\"header\\": NaN}"}}',
            '{"a": 1, "a": 2}',
            '{"a": ' * 100_000 + "1" + "}" * 100_000,
            '{"a": ' + "9" * 10_000 + "}",
            "\ufeff{}",
            "not json " + SENTINEL,
        ],
    )
    def test_forged_headers(self, scratch, text):
        self.assert_refused(scratch, _join(text, b""))

    def test_too_many_arrays(self, scratch, content):
        entries = {
            str(i): {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(10_001)
        }
        entries["__metadata__"] = _split(content)[0]["__metadata__"]
        self.assert_refused(scratch, _join(json.dumps(entries), b""))

    def test_a_newer_format_asks_for_an_upgrade(self, scratch, content):
        entries, data = _split(content)
        document = json.loads(entries["__metadata__"]["dpflow"]) | {"format_version": 2}
        entries["__metadata__"]["dpflow"] = json.dumps(document)
        scratch.write_bytes(_join(json.dumps(entries), data))
        with pytest.raises(InputError, match="written by a newer version of dpflows.*upgrade"):
            read_model(scratch)

    def test_a_changed_epsilon_in_the_header_is_noticed(self, scratch, content):
        assert b"1.5" in content
        self.assert_refused(scratch, content.replace(b"1.5", b"0.5"))

    @settings(max_examples=400, deadline=None)
    @given(data=st.data())
    def test_mutations_are_refused_or_change_nothing(self, scratch, content, data):
        position = data.draw(st.integers(0, len(content)))
        removed = data.draw(st.integers(0, 12))
        inserted = data.draw(st.binary(max_size=12))
        mutant = content[:position] + inserted + content[position + removed :]
        self.assert_refused_or_equal(scratch, mutant)

    @settings(max_examples=300, deadline=None)
    @given(
        name=st.sampled_from([*ARRAYS, "__metadata__", "another"]),
        field=st.sampled_from(["dtype", "shape", "data_offsets", "dpflow", ""]),
        value=json_values,
    )
    def test_any_json_in_any_place_of_the_header_is_survived(
        self, scratch, content, name, field, value
    ):
        entries, data = _split(content)
        entries[name] = entries.get(name, {}) | {field: value} if field else value
        self.assert_refused_or_equal(scratch, _join(json.dumps(entries), data))

    @pytest.mark.long
    def test_a_hundred_thousand_mutations(self, scratch, content):
        rng = np.random.default_rng()
        for _ in range(100_000):
            mutant = bytearray(content)
            for position in rng.integers(len(mutant), size=rng.integers(1, 5)):
                mutant[position] ^= 1 << int(rng.integers(8))
            start = time.perf_counter()
            self.assert_refused_or_equal(scratch, bytes(mutant[: rng.integers(len(mutant) * 2)]))
            assert time.perf_counter() - start < 5

    def test_the_mutation_test_has_power(self, scratch, content, monkeypatch):
        """Without the digest a flipped bit in an array would pass unseen."""
        monkeypatch.setattr(files, "_digest", lambda header, arrays: None)
        entries, data = _split(content)
        document = json.loads(entries["__metadata__"]["dpflow"]) | {"digest": None}
        entries["__metadata__"]["dpflow"] = json.dumps(document)
        flipped = bytearray(_join(json.dumps(entries), data))
        flipped[-1] ^= 1
        with pytest.raises(AssertionError):
            self.assert_refused_or_equal(scratch, bytes(flipped))

    def assert_refused_or_equal(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        message = ""
        try:
            header, arrays = read_model(path)
        except InputError as error:
            message = str(error)
        assert SENTINEL not in message
        if not message:
            assert header == HEADER
            assert_same_arrays(arrays, ARRAYS)


def _write_half(target: Path, failure: type[BaseException]) -> None:
    with write_atomically(target) as file:
        file.write(b"half")
        raise failure


class _Bomb:
    exploded = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (_Bomb, "exploded", True)


def assert_same_arrays(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name, array in right.items():
        assert left[name].dtype == array.dtype
        assert left[name].shape == array.shape
        assert left[name].tobytes() == array.tobytes()


def _split(content: bytes) -> tuple[dict[str, Any], bytes]:
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def _join(text: str, data: bytes) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw + data
