"""Probes on the Hugging Face hub: folders with the probe's file and a model card."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import HfApi, ModelCardData

from lastword.errors import InputError, one_line
from lastword.files.writing import open_whole
from lastword.model.weights.hub import REFUSALS, download, endpoint

FILE, CARD = "probe.safetensors", "README.md"


def save_folder(folder: Path, raw: bytes, card: str) -> None:
    """Write a probe's bytes and its model card into a folder.

    Raises:
        OSError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in ((FILE, raw), (CARD, card.encode())):
        with open_whole(folder / name) as file:
            file.write(content)


def publish(
    repo: str, raw: bytes, card: str, *, private: bool | None, revision: str | None, message: str
) -> str:
    """Upload a probe and its model card in one commit, and return the commit's address.

    Raises:
        InputError: The hub refuses the upload, or cannot be reached.
    """
    api = HfApi(endpoint(), library_name="lastword")
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(repo, branch=revision, exist_ok=True)
        with TemporaryDirectory() as place:
            save_folder(Path(place), raw, card)
            commit = api.upload_folder(
                repo_id=repo, folder_path=place, revision=revision, commit_message=message
            )
    except REFUSALS as error:
        raise InputError(f"cannot upload the probe to {repo}: {one_line(error)}") from error
    return str(commit.commit_url)


def find_file(name: str, revision: str | None) -> Path:
    """Return the probe's file in a folder, or download it from the hub.

    Raises:
        CheckpointError: The hub has no probe with this name, or cannot be reached.
    """
    if (folder := Path(name).expanduser()).is_dir():
        return folder / FILE
    return download(name, FILE, revision)[0]


def model_card(
    facts: Mapping[str, Any], options: Sequence[str], verdict: Mapping[str, Any] | None
) -> str:
    """Return the model card of a probe.

    Args:
        facts: Its name, question, model, template and number of labels, in words.
        options: The answers that it can give.
        verdict: Content of `verdict.json` of the trial that fitted it.
    """
    model = facts["model"]
    data = ModelCardData(
        library_name="lastword",
        pipeline_tag="text-classification",
        tags=["lastword", "probe"],
        base_model=model if model.count("/") == 1 and not model.startswith("lastword/") else None,
    )
    lines = [
        *("---", data.to_yaml().strip(), "---", "", f"# {facts['name']}", ""),
        f"A linear classifier on the hidden states of {model}, fitted with lastword to "
        f"{facts['labels']} labels.",
        "",
        *(f"- {key}: {value}" for key, value in facts.items() if key not in ("name", "labels")),
        f"- options: {', '.join(options)}",
    ]
    if verdict is not None:
        advice = verdict["advice"]
        lines += ["", "## Results", "", advice["headline"], "", *advice["guarantee"]]
        lines += ["", "```", *advice["chart"], "", *advice["by_class"], "```"]
    lines += [
        *("", "## Use", "", "```python", "from lastword import Decider, Probe, Tracer", ""),
        'probe = Probe.from_pretrained("OWNER/NAME")',
        f"decider = Decider(Tracer.from_pretrained({model!r}), probes=[probe])",
        'print(decider.decide("A new text", {"answer": probe.question})["answer"])',
        *("```", ""),
    ]
    return "\n".join(lines)
