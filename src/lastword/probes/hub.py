"""Probes on the Hugging Face hub: one file and a short model card."""

from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData

from lastword.files.writing import open_whole
from lastword.model.weights.hub import download

FILE = "probe.safetensors"


def save_folder(folder: Path, raw: bytes, facts: dict[str, str]) -> None:
    """Write a probe's bytes, and a model card with some facts."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_whole(folder / FILE) as file:
        file.write(raw)
    tags = ["lastword", "probe"]
    data = ModelCardData(library_name="lastword", pipeline_tag="text-classification", tags=tags)
    lines = "\n".join(f"- {name}: {text}" for name, text in facts.items())
    ModelCard(f"---\n{data.to_yaml()}\n---\n\n{lines}\n").save(folder / "README.md")


def find_file(name: str, revision: str | None) -> Path:
    """Return the probe's file in a folder, or download it from the hub."""
    if (folder := Path(name).expanduser()).is_dir():
        return folder / FILE
    return download(name, FILE, revision)[0]
