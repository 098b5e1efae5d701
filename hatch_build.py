"""README as the package index shows it: links and picture lead to the repository.

In a checkout they are relative. REPOSITORY_URL is the address of the repository that a release is
made of; its workflow knows it, and nothing else has to. A package that is built without it keeps
README as it stands.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"(\]\(|(?:src|href)=\")(?![a-z]+:|#)([^)\"\s]+)")
PICTURES = (".gif", ".jpg", ".png", ".svg")


class ReadmeHook(MetadataHookInterface):
    """README and the project's addresses, which `pyproject.toml` leaves to the build."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set both, as hatchling asks for them."""
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        if repository := os.environ.get("REPOSITORY_URL", "").rstrip("/"):
            readme = absolute(readme, repository, f"v{metadata['version']}")
            changes = f"{repository}/blob/v{metadata['version']}/CHANGELOG.md"
            metadata["urls"] = {"Repository": repository, "Changelog": changes}
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}


def absolute(page: str, repository: str, revision: str) -> str:
    """Return a page of the repository with full links, at a revision."""

    def full(link: re.Match[str]) -> str:
        kind = "raw" if link[2].endswith(PICTURES) else "blob"
        return f"{link[1]}{repository}/{kind}/{revision}/{link[2]}"

    return RELATIVE.sub(full, page)
