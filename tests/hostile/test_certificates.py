"""A certificate never shows less than its releases cost, and a signature holds every byte."""

import dataclasses
import random
import secrets
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

import dpflows
from dpflows import files
from dpflows.errors import InputError
from dpflows.privacy.accounting import guarantee_for
from dpflows.privacy.accounting.certificates import read_guarantee
from dpflows.privacy.guarantee import Guarantee
from dpflows.signatures import Signature, new_key_pair
from figures import note
from hostile.forging import WAYS, forged, guarantees, judged, write_forged
from hostile.making import FILES, MIXED
from hostile.mutating import opened

#: All of them but the largest, which tell nothing new and take longest.
SOUND = sorted(path for path in FILES.glob("*.dpflow") if path.stem not in MIXED)


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> tuple[Path, Path]:
    return new_key_pair(tmp_path_factory.mktemp("keys") / "curator")


@pytest.fixture
def signed(tmp_path, keys) -> Path:
    shutil.copy(FILES / "DPHistogram.dpflow", tmp_path / "m.dpflow")
    dpflows.sign(tmp_path / "m.dpflow", keys[0], signer="Ward 7")
    return tmp_path / "m.dpflow"


def _judge(folder: Path, count: int) -> Counter[str]:
    """What became of so many forgeries, by way."""
    sound = {path: path.read_bytes() for path in SOUND}
    outcomes: Counter[str] = Counter()
    first = secrets.randbelow(len(SOUND))
    for number in range(first, first + count):
        chance = random.Random(secrets.randbits(64))
        way, content = forged(chance, sound[SOUND[number % len(SOUND)]])
        (folder / "m.dpflow").write_bytes(content)
        outcomes[f"{way}: {judged(folder / 'm.dpflow')}"] += 1
    return outcomes


def _wrong(outcomes: Counter[str]) -> list[str]:
    return [name for name in outcomes if not name.endswith((": refused", ": shown"))]


def test_forty_forged_headers(tmp_path):
    assert _wrong(_judge(tmp_path, 40)) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_thousand_forged_headers(tmp_path):
    outcomes = _judge(tmp_path, 1000)
    note("forged certificates", dict(outcomes))
    assert _wrong(outcomes) == []
    assert {name.split(":")[0] for name in outcomes} == set(WAYS)
    refused = sum(count for name, count in outcomes.items() if name.endswith(": refused"))
    assert 500 < refused < 1000


def _believe_files(monkeypatch) -> None:
    """The loader of version 0.1, which took a header at its word."""
    for module in ("estimators.base", "anomaly.threshold", "anomaly.ensemble"):
        monkeypatch.setattr(f"dpflows.{module}.read_guarantee", Guarantee.from_dict)
    for module in ("estimators.base", "anomaly.ensemble"):
        monkeypatch.setattr(f"dpflows.{module}.check_plan", lambda *_: None)
    monkeypatch.setattr("dpflows.anomaly.threshold._check_total", lambda *_: None)


@pytest.mark.parametrize("way", ["epsilon", "kind", "texts"])
def test_the_judge_catches_a_loader_that_believes(tmp_path, monkeypatch, way):
    _believe_files(monkeypatch)
    monkeypatch.setattr("hostile.forging.WAYS", {way: WAYS[way]})
    assert _wrong(_judge(tmp_path, 20))


def test_a_forged_epsilon_is_refused_in_plain_words(tmp_path):
    def forge(header):
        header["guarantee"]["epsilon"] = 0.001

    write_forged(tmp_path / "m.dpflow", forge, FILES / "DPGaussian.dpflow")
    with pytest.raises(InputError, match=r"claims epsilon 0\.001, but .* cost 3"):
        dpflows.load(tmp_path / "m.dpflow")


def test_rounding_noise_is_forgiven_and_the_larger_figure_is_shown(tmp_path):
    sound = opened((FILES / "DPGaussian.dpflow").read_bytes()).header["guarantee"]
    for factor in (1 - 5e-7, 1 + 1e-3):
        read = read_guarantee(sound | {"epsilon": sound["epsilon"] * factor})
        assert read.epsilon == pytest.approx(sound["epsilon"] * max(factor, 1.0), rel=1e-12)
    with pytest.raises(InputError):
        read_guarantee(sound | {"epsilon": sound["epsilon"] * (1 - 2e-6)})


def test_every_sound_guarantee_is_read_as_it_was_written():
    for path in FILES.glob("*.dpflow"):
        for written in guarantees(opened(path.read_bytes()).header):
            read, stated = read_guarantee(written), Guarantee.from_dict(written)
            for name in ("epsilon", "replace_one_epsilon"):
                # The last digits are the arithmetic's, and the larger figure is shown.
                assert getattr(read, name) == pytest.approx(getattr(stated, name), rel=1e-12)
                read = dataclasses.replace(read, **{name: getattr(stated, name)})
            assert read == stated


GAUSSIAN = {"kind": "gaussian", "noise": 1.0, "purpose": "", "count": 1}
UNIT = {"zero_out": 1.0, "add_remove": 1.0, "replace_one": 2.0}
STEP = {"kind": "sampled-gaussian", "sampling": "poisson", "rows": 1000, "batch_size": 10}
PURE = {"kind": "pure", "epsilon": UNIT}
VOTE = {"kind": "vote", "voters": 2000, "epsilon": 0.1, "law": "geometric", "sensitivity": UNIT}
HOSTILE = {
    "ten to the twelve steps": [STEP | {"noise_multiplier": 1.0, "count": 10**12}],
    "as many as a float holds": [PURE | {"count": 10**308}],
    "a million answers": [PURE | {"count": 1_000_000}],
    "no noise": [GAUSSIAN | {"sensitivity": UNIT, "noise": 1e-300}],
    "every row in every batch": [STEP | {"batch_size": 1000, "noise_multiplier": 1e-300}],
    "not a number": [GAUSSIAN | {"sensitivity": UNIT, "noise": float("nan")}],
    "rows without end": [STEP | {"rows": 10**400, "noise_multiplier": 1.0}],
    "voters without end": [VOTE | {"voters": 10**9}],
    "thousands of kinds": [
        STEP | {"noise_multiplier": 1.0 + number / 1000} for number in range(2000)
    ],
    "thousands of pure kinds": [
        PURE | {"epsilon": UNIT | {"zero_out": number / 1000}} for number in range(2000)
    ],
    "many lines": [GAUSSIAN | {"sensitivity": UNIT}] * 20_000,
    "a vote of thousands": [VOTE | {"count": 1000}],
}


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_list_of_releases_cannot_keep_its_reader_busy(name, accountant):
    """Of the processor's own time, because the machine may be shared."""
    sound = opened((FILES / "DPGaussian.dpflow").read_bytes()).header["guarantee"]
    claim = {"events": HOSTILE[name], "epsilon": 1e-6, "accountant": accountant}
    start = time.process_time()
    with pytest.raises(InputError):
        read_guarantee(sound | claim)
    assert time.process_time() - start < 5


class TestSignatures:
    def test_a_signed_file_is_loaded_and_verified(self, signed, keys):
        assert dpflows.verify(signed, keys[1]).signer == "Ward 7"
        assert dpflows.load(signed).guarantee_.is_private

    def test_to_sign_changes_nothing_but_the_signature(self, signed, keys):
        source = FILES / "DPHistogram.dpflow"
        header, arrays = files.read_model(signed)
        assert header == files.read_model(source)[0]
        assert {name: array.tobytes() for name, array in arrays.items()} == {
            name: array.tobytes() for name, array in files.read_model(source)[1].items()
        }
        assert files.artefact_digest(signed) == files.artefact_digest(source)
        dpflows.sign(signed, keys[0], signer="Ward 8")
        assert files.artefact_digest(signed) == files.artefact_digest(source)
        assert dpflows.verify(signed, keys[1]).signer == "Ward 8"

    def test_changed_bytes_at_sampled_places(self, signed, keys):
        size = signed.stat().st_size
        self.assert_refused(signed, keys[1], random.Random().sample(range(size), 200))

    @pytest.mark.long
    @pytest.mark.timeout(1800)
    def test_a_changed_byte_anywhere(self, signed, keys):
        self.assert_refused(signed, keys[1], range(signed.stat().st_size))

    def assert_refused(self, path, key, places) -> None:
        content, mutant = path.read_bytes(), path.with_name("changed.dpflow")
        for place in places:
            changed = bytearray(content)
            changed[place] ^= 1 << secrets.randbelow(8)
            mutant.write_bytes(changed)
            for read in (lambda: dpflows.verify(mutant, key), lambda: dpflows.load(mutant)):
                with pytest.raises(InputError):
                    read()

    @pytest.mark.parametrize("cut", [1, 100, -1, -100])
    def test_added_and_missing_bytes(self, signed, keys, cut):
        content = signed.read_bytes()
        for changed in (content[:-1], content[:cut], content + b"\0", b" " + content):
            signed.write_bytes(changed)
            with pytest.raises(InputError):
                dpflows.verify(signed, keys[1])

    def test_a_blank_in_the_header_is_a_change_too(self, signed, keys):
        """JSON would read the same; the signature holds the bytes."""
        content = signed.read_bytes()
        length = int.from_bytes(content[:8], "little")
        text = content[8 : 8 + length].replace(b'":{', b'": {', 1)
        signed.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
        with pytest.raises(InputError, match="changed after it was signed"):
            dpflows.verify(signed, keys[1])

    def test_another_content_under_an_old_signature(self, signed, keys, monkeypatch):
        self._transplant(signed)
        for read in (lambda: dpflows.verify(signed, keys[1]), lambda: dpflows.load(signed)):
            with pytest.raises(InputError, match="changed after it was signed"):
                read()
        # the twin: a reader that does not check takes it
        monkeypatch.setattr(Signature, "is_valid_for", lambda *_: True)
        dpflows.verify(signed, keys[1])

    def _transplant(self, signed: Path) -> None:
        """Put the signature of one content on another, with a digest that fits."""
        old = files.read_signature(signed)
        header, arrays = files.read_model(signed)
        header["guarantee"]["stamps"] = []
        header["guarantee"]["versions"]["dpflows"] = "9.9"
        files.write_model(signed, header=header, arrays=arrays)
        signed.write_bytes(files._with_signature(signed.read_bytes(), old.to_dict()))

    @pytest.mark.parametrize("part", ["signer", "time"])
    def test_name_and_time_are_signed_too(self, signed, keys, part):
        found = files.read_signature(signed).to_dict()
        other = {"signer": "Ward 9", "time": "2001-01-01T00:00:00Z"}[part]
        plain = files._without_signature(signed.read_bytes())
        signed.write_bytes(files._with_signature(plain, found | {part: other}))
        with pytest.raises(InputError, match="changed after it was signed"):
            dpflows.verify(signed, keys[1])

    def test_another_key_and_no_signature(self, signed, keys, tmp_path):
        _, other = new_key_pair(tmp_path / "other")
        with pytest.raises(InputError, match="another key"):
            dpflows.verify(signed, other)
        with pytest.raises(InputError, match="not signed"):
            dpflows.verify(FILES / "DPHistogram.dpflow", keys[1])

    def test_a_forged_certificate_is_not_signed(self, tmp_path, keys):
        def forge(header):
            header["guarantee"]["epsilon"] = 0.001

        write_forged(tmp_path / "m.dpflow", forge, FILES / "DPGaussian.dpflow")
        before = (tmp_path / "m.dpflow").read_bytes()
        with pytest.raises(InputError, match="claims epsilon"):
            dpflows.sign(tmp_path / "m.dpflow", keys[0])
        assert (tmp_path / "m.dpflow").read_bytes() == before

    def test_an_ensemble_is_not_signed(self, tmp_path, keys):
        shutil.copy(FILES / "DPEnsembleDetector.dpflow", tmp_path / "e.dpflow")
        with pytest.raises(InputError, match="must not be published"):
            dpflows.sign(tmp_path / "e.dpflow", keys[0])

    def test_a_key_that_others_can_read_is_refused(self, signed, tmp_path):
        secret, _ = new_key_pair(tmp_path / "open")
        secret.chmod(0o644)
        with pytest.raises(InputError, match="chmod 600"):
            dpflows.sign(signed, secret)

    def test_a_passphrase_is_needed_where_the_key_has_one(self, signed, tmp_path):
        secret, public = new_key_pair(tmp_path / "locked", passphrase="open sesame")
        for wrong in (None, "open barley"):
            with pytest.raises(InputError, match="passphrase"):
                dpflows.sign(signed, secret, passphrase=wrong)
        dpflows.sign(signed, secret, passphrase="open sesame")
        assert dpflows.verify(signed, public).signer == "locked"

    @pytest.mark.parametrize(
        "name", ["", " ", "two\nlines", "\x1b[31m", "x" * 201, "Ward 7, SHA256:abc", "\u202eward"]
    )
    def test_a_name_that_would_deceive_is_refused(self, signed, keys, name):
        with pytest.raises(InputError, match="signer must be a name"):
            dpflows.sign(signed, keys[0], signer=name)

    @pytest.mark.parametrize(
        "change",
        [{"signer": 7}, {"value": "AB" * 64}, {"public_key": "x"}, {"time": "now"}, {"more": ""}],
    )
    def test_forged_signatures_are_refused(self, signed, change):
        found = files.read_signature(signed).to_dict()
        plain = files._without_signature(signed.read_bytes())
        signed.write_bytes(files._with_signature(plain, found | change))
        with pytest.raises(InputError, match="signature cannot be read"):
            dpflows.load(signed)


def test_no_pricing_beyond_the_limits_is_ever_written():
    """A step count just within the limit is read back."""
    from dpflows.privacy.events import GaussianEvent, Sensitivity
    from dpflows.privacy.guarantee import Budget

    event = GaussianEvent(noise=1e4, sensitivity=Sensitivity.of_sum(1.0), count=1_000_000)
    promise = guarantee_for([event], budget=Budget(1.0, 1e-6))
    assert read_guarantee(promise.to_dict()) == promise
