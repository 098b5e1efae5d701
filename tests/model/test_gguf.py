"""GGUF files: headers and tensors, from disk and from the hub, and invalid files."""

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import gguf
import gguf_files
import hub_server
import huggingface_hub.utils
import pytest
import torch

from lastword.errors import ModelError
from lastword.model.weights.gguf import is_gguf, open_file
from lastword.model.weights.hub import open_gguf


def refusal(call: Callable[[], object]) -> str:
    """Return the one-line error of opening a file."""
    with pytest.raises(ModelError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def tensor(name: str, row: int, offset: int, kind: int = 0) -> bytes:
    """Return an entry of the tensor table; kind 0 is F32, 2 is Q4_0."""
    return text(name) + struct.pack("<IQIQ", 1, row, kind, offset)


def value(name: str, kind: int, raw: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + raw


def header(*tensors: bytes, values: Sequence[bytes] = ()) -> bytes:
    counts = struct.pack("<IQQ", 3, len(tensors), len(values))
    return b"GGUF" + counts + b"".join([*values, *tensors]) + bytes(4096)


ALIGNMENT = "general.alignment"
NAME = value("general.name", 8, text("a"))
LIES = {
    "two tensors named 't'": header(tensor("t", 8, 0), tensor("t", 8, 32)),
    "two values named 'general.name'": header(values=[NAME, NAME]),
    "the bytes of t and u overlap": header(tensor("u", 8, 16), tensor("t", 8, 0)),
    "a row of 33 values cannot": header(tensor("t", 33, 0, kind=2)),
    "its header expects": header(tensor("t", 8, 2**63)),
    "the alignment 0": header(values=[value(ALIGNMENT, 4, struct.pack("<I", 0))]),
    "the alignment -32": header(values=[value(ALIGNMENT, 5, struct.pack("<i", -32))]),
    "the alignment 32.0": header(values=[value(ALIGNMENT, 6, struct.pack("<f", 32))]),
    "in its header": header(values=[value("a", 9, struct.pack("<IQ", 8, 2**60))]),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small llama as a file; tests that damage it use a copy."""
    folder = tmp_path_factory.mktemp("gguf")
    return gguf_files.write(folder / "llama.gguf", gguf_files.build("llama"))


class TestHub:
    @pytest.fixture
    def hub(
        self, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[hub_server.Hub]:
        """Yield a stand-in hub with the file, enlarged by a tensor."""
        folder = tmp_path / "files"
        folder.mkdir()
        gguf_files.write(
            folder / "model.gguf",
            gguf_files.build("llama"),
            extra={"rope_freqs.weight": torch.ones(3_000_000).numpy()},
        )
        with hub_server.instead(folder, tmp_path, monkeypatch) as hub:
            hub.large = (".gguf",)
            yield hub

    def test_only_the_header_is_downloaded(self, hub, llama):
        header = open_gguf("org/model", "model.gguf").header
        assert {**header.values} == {**open_file(llama).header.values}
        assert (hub.folder / "model.gguf").stat().st_size > 12_000_000
        assert hub.served["model.gguf"] < 1_200_000

    def test_a_downloaded_file_is_used(self, hub, monkeypatch):
        huggingface_hub.hf_hub_download("org/model", "model.gguf", endpoint=hub.url)
        before = hub.served["model.gguf"]
        online = open_gguf("org/model", "model.gguf").header
        assert hub.served["model.gguf"] == before + 4
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        assert open_gguf("org/model", "model.gguf").header == online

    def test_a_missing_file_or_model_is_an_error(self, hub):
        for name, file, words in (
            ("org/model", "other.gguf", "no file org/model/other.gguf"),
            ("org/other", "model.gguf", "does not exist"),
        ):
            assert words in refusal(partial(open_gguf, name, file))


class TestRefused:
    @pytest.mark.parametrize(
        ("name", "damage", "words"),
        [
            ("model-00001-of-00003.gguf", lambda whole: None, "one of 3 parts"),
            ("none.gguf", lambda whole: None, "no file"),
            ("cut.gguf", lambda whole: whole[: int(0.999 * len(whole))], "cut short"),
            ("cut.gguf", lambda whole: whole[: len(whole) // 2], "cut short"),
            (
                "few.gguf",
                lambda whole: whole[:8] + bytes([whole[8] - 1]) + whole[9:],
                "bytes follow",
            ),
            ("cut.gguf", lambda whole: whole[:500], "in its header"),
            ("lfs.gguf", lambda whole: b"version https://git-lfs.github.com", "git lfs pull"),
            ("zip.gguf", lambda whole: b"PK\x03\x04" * 40, "not a GGUF file"),
            ("old.gguf", lambda whole: b"GGUF" + struct.pack("<I", 1) + whole[8:], "version 1"),
            ("large.gguf", lambda w: w[:24] + struct.pack("<Q", 2**62) + w[32:], "header"),
        ],
    )
    def test_damaged(self, llama, tmp_path, name, damage, words):
        if (data := damage(llama.read_bytes())) is not None:
            (tmp_path / name).write_bytes(data)
        assert words in refusal(lambda: open_file(tmp_path / name))

    @pytest.mark.parametrize("words", LIES)
    def test_an_inconsistent_header(self, tmp_path, words):
        (tmp_path / "lie.gguf").write_bytes(LIES[words])
        assert words in refusal(lambda: open_file(tmp_path / "lie.gguf"))

    def test_a_part(self, tmp_path):
        model = gguf_files.build("llama")
        path = gguf_files.write(tmp_path / "model.gguf", model, values={"split.count": 2})
        assert "one of 2 parts" in refusal(lambda: open_file(path))

    @pytest.mark.parametrize("package", ["gguf", "accelerate"])
    def test_without_its_extra(self, llama, monkeypatch, package):
        monkeypatch.setattr(
            "lastword.model.weights.gguf.find_spec", lambda name: None if name == package else True
        )
        assert f'needs {package}: pip install "lastword[gguf]"' in refusal(lambda: open_file(llama))


def test_names():
    assert is_gguf("a/b/Model.Q4_1.GGUF")
    assert not is_gguf("org/model-GGUF")


def test_headers_agree_with_the_gguf_package(llama):
    """The package's reader needs the whole file, but gives the same table of tensors."""
    header, reader = open_file(llama).header, gguf.GGUFReader(llama)
    assert {t.name: (t.tensor_type.name, t.data_offset) for t in reader.tensors} == {
        name: (t.dtype, t.start) for name, t in header.tensors.items()
    }
    assert header.values["llama.block_count"] == reader.fields["llama.block_count"].contents()
