"""Files are written completely or not at all."""

import os

import pytest

from lastword.files.writing import open_whole


def test_a_file_appears_only_when_it_is_complete(tmp_path):
    path = tmp_path / "records"
    with open_whole(path) as file:
        file.write(b"one")
        assert not path.exists()
    with open_whole(path) as file:
        file.write(b"two")
        assert path.read_bytes() == b"one"
    assert path.read_bytes() == b"two" and os.listdir(tmp_path) == ["records"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file(step, tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "records"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, step, refuse)
    with pytest.raises(OSError, match="No space"), open_whole(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["records"]


def test_two_writers_of_one_file_do_not_mix(tmp_path):
    path = tmp_path / "records"
    with open_whole(path) as first, open_whole(path) as second:
        first.write(b"first")
        second.write(b"the second")
    assert path.read_bytes() == b"first" and os.listdir(tmp_path) == ["records"]
