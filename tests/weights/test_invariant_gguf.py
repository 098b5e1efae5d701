"""I(M) from GGUF files: the tensors that the model has, wherever the file lies; what is refused."""

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import gguf_files
import hub_server
import huggingface_hub.utils
import pytest
import torch
from gguf_files import KINDS

from lastword.errors import ModelError
from lastword.theta import Theta
from lastword.weights.gguf import GgufCheckpoint, is_gguf, open_file
from lastword.weights.invariant import (
    Factors,
    model_invariant,
    read_interpretations,
    read_invariant,
)

EXACT = {"rel": 1e-6, "abs": 0.0}
# Half a step of each format, as a share of the largest value of a block of 32.
STEPS = {"Q8_0": 1 / 254, "Q5_1": 1 / 31, "Q4_1": 1 / 15, "Q4_0": 1 / 8, "F16": 1e-3, "BF16": 1e-2}


def read(path: Path | str, **options: Any) -> Factors:
    return read_invariant(path, theta=Theta(), **options)


def refusal(path: Path | str, **options: Any) -> str:
    started = time.monotonic()
    with pytest.raises(ModelError) as caught:
        read(path, **options)
    assert time.monotonic() - started < 1.0
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest llama as a file; tests that damage it take a copy."""
    folder = tmp_path_factory.mktemp("gguf")
    return gguf_files.write(folder / "llama.gguf", gguf_files.build("llama"))


@pytest.mark.parametrize("kind", KINDS)
def test_reads_the_tensors_that_were_written(kind: str, tmp_path: Path) -> None:
    model = gguf_files.build(kind)
    checkpoint = open_file(gguf_files.write(tmp_path / "model.gguf", model, kind))
    state = model.state_dict()
    for name in checkpoint.names:
        torch.testing.assert_close(checkpoint.read(name), state[name], rtol=0, atol=1e-6)
    found = read(tmp_path / "model.gguf")
    truth = model_invariant(model, theta=Theta())
    assert found.value == pytest.approx(truth.value, **EXACT)
    assert (found.tensors, found.layout) == (truth.tensors, truth.layout)


@pytest.mark.parametrize("stored", STEPS)
def test_dequantises(stored: str, tmp_path: Path) -> None:
    model = gguf_files.build("llama")
    checkpoint = open_file(gguf_files.write(tmp_path / "model.gguf", model, stored=stored))
    assert checkpoint.header.quantisation == stored
    state, changed = model.state_dict(), 0
    for name in checkpoint.names:
        truth, found = state[name], checkpoint.read(name)
        largest = truth.abs().reshape(-1, 32).amax(1, keepdim=True)
        far = (truth - found).abs().reshape(-1, 32) / largest
        assert far.max() <= STEPS[stored] + 2**-10  # scales are stored in float16
        changed += not torch.equal(truth, found)
    assert changed >= 24  # every matrix: the test compares what was rounded


def test_all_readings_are_read(llama: Path) -> None:
    first, *others = read_interpretations(llama, theta=Theta())
    assert first.factors == read(llama)
    assert len({reading.factors.value for reading in others}) > 1


def test_a_file_in_a_folder_by_name(llama: Path) -> None:
    assert read(llama.parent, gguf="llama.gguf") == read(llama)


class TestHub:
    @pytest.fixture
    def hub(
        self, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[hub_server.Hub]:
        """The file, made long by a tensor that I(M) does not need, behind the stand-in."""
        folder = tmp_path / "files"
        folder.mkdir()
        gguf_files.write(
            folder / "model.gguf",
            gguf_files.build("llama"),
            extra={"rope_freqs.weight": torch.ones(3_000_000).numpy()},
        )
        with hub_server.serve(folder) as hub:
            hub.large = (".gguf",)
            monkeypatch.setenv("HF_ENDPOINT", hub.url)
            monkeypatch.delenv("HF_TOKEN", raising=False)
            monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
            monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
            huggingface_hub.utils.close_session()
            yield hub
            huggingface_hub.utils.close_session()

    def test_reads_by_range(self, hub: hub_server.Hub, llama: Path) -> None:
        assert read("org/model", gguf="model.gguf") == read(llama)
        whole = (hub.folder / "model.gguf").stat().st_size
        assert whole > 12_000_000
        assert hub.served["model.gguf"] < 1_200_000  # the first piece, and five small tensors

    def test_takes_what_was_downloaded(
        self, hub: hub_server.Hub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        huggingface_hub.hf_hub_download("org/model", "model.gguf", endpoint=hub.url)
        before = hub.served["model.gguf"]
        online = read("org/model", gguf="model.gguf")
        assert hub.served["model.gguf"] == before + 4
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        assert read("org/model", gguf="model.gguf") == online

    def test_no_such_file(self, hub: hub_server.Hub) -> None:
        assert "no file org/model/other.gguf" in refusal("org/model", gguf="other.gguf")

    def test_no_such_model(self, hub: hub_server.Hub) -> None:
        assert "does not exist" in refusal("org/other", gguf="model.gguf")


class TestRefused:
    def test_missing(self, tmp_path: Path) -> None:
        assert "there is no file" in refusal(tmp_path / "none.gguf")

    def test_split_by_name(self, tmp_path: Path) -> None:
        path = tmp_path / "model-00001-of-00003.gguf"
        assert "one of 3 parts" in refusal(path)

    def test_split_by_header(self, tmp_path: Path) -> None:
        model, values = gguf_files.build("llama"), {"split.count": 2}
        path = gguf_files.write(tmp_path / "model.gguf", model, values=values)
        assert "one of 2 parts" in refusal(path)

    def test_unknown_architecture(self, tmp_path: Path) -> None:
        path = gguf_files.write(tmp_path / "model.gguf", gguf_files.build("llama"), "grok")
        assert "grok" in refusal(path)

    @pytest.mark.parametrize("share", [0.999, 0.5])
    def test_cut_short(self, llama: Path, tmp_path: Path, share: float) -> None:
        whole = llama.read_bytes()
        path = tmp_path / "cut.gguf"
        path.write_bytes(whole[: int(share * len(whole))])
        assert "cut short" in refusal(path)

    def test_cut_short_within_the_header(self, llama: Path, tmp_path: Path) -> None:
        path = tmp_path / "cut.gguf"
        path.write_bytes(llama.read_bytes()[:500])
        assert "in its header" in refusal(path)

    def test_another_format(self, tmp_path: Path) -> None:
        path = tmp_path / "model.gguf"
        path.write_bytes(b"PK\x03\x04" * 40)
        assert "no GGUF file" in refusal(path)

    def test_another_version(self, llama: Path, tmp_path: Path) -> None:
        path = tmp_path / "old.gguf"
        path.write_bytes(b"GGUF" + struct.pack("<I", 1) + llama.read_bytes()[8:])
        assert "version 1" in refusal(path)

    def test_a_number_that_no_header_has(self, llama: Path, tmp_path: Path) -> None:
        path = tmp_path / "large.gguf"
        head = llama.read_bytes()
        path.write_bytes(head[:24] + struct.pack("<Q", 2**62) + head[32:])
        assert "header" in refusal(path)

    def test_every_damaged_byte_of_a_header_ends_in_one_line(
        self, llama: Path, tmp_path: Path
    ) -> None:
        path, whole = tmp_path / "damaged.gguf", llama.read_bytes()
        for place in range(0, 400, 3):
            path.write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
            try:
                open_file(path)
            except ModelError as error:
                assert "\n" not in str(error)

    @pytest.mark.parametrize("package", ["gguf", "accelerate"])
    def test_without_its_extra(
        self, llama: Path, monkeypatch: pytest.MonkeyPatch, package: str
    ) -> None:
        monkeypatch.setattr(
            "lastword.weights.gguf.find_spec", lambda name: None if name == package else True
        )
        assert f"needs {package}: pip install 'lastword[gguf]'" in refusal(llama)


def test_names() -> None:
    assert is_gguf("a/b/Model.Q4_1.GGUF")
    assert not is_gguf("org/model-GGUF")


def test_reads_what_the_package_reads(llama: Path) -> None:
    """The package's own reader, which needs the whole file, sees the same table of tensors."""
    header, reader = open_file(llama).header, gguf.GGUFReader(llama)
    assert {t.name: (t.tensor_type.name, t.data_offset) for t in reader.tensors} == {
        name: (t.kind, t.start) for name, t in header.tensors.items()
    }
    assert header.values["llama.block_count"] == reader.fields["llama.block_count"].contents()
    assert isinstance(open_file(llama), GgufCheckpoint)
