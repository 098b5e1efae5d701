"""README as the package index shows it: links and picture lead to the repository.

In a checkout they are relative. REPOSITORY_URL is the address of the repository that a release is
made of, and CONTACT_EMAIL the address for mail about it. Its workflow knows them, and nothing else
has to. A package that is built without them keeps README as it stands.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"(\]\(|(?:src|href)=\")(?![a-z]+:|#)([^)\"\s]+)")
PICTURES = (".gif", ".jpg", ".png", ".svg")


class ReadmeHook(MetadataHookInterface):
    """README, the authors and the addresses, which `pyproject.toml` leaves to the build."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set them, as hatchling asks for them."""
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        if repository := os.environ.get("REPOSITORY_URL", "").rstrip("/"):
            readme = absolute(readme, repository, f"v{metadata['version']}")
            changes = f"{repository}/blob/v{metadata['version']}/CHANGELOG.md"
            metadata["urls"] = {"Repository": repository, "Changelog": changes}
        author = {"name": "The lastword contributors"}
        if email := os.environ.get("CONTACT_EMAIL"):
            author["email"] = email
        metadata["authors"] = [author]
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}


def absolute(page: str, repository: str, revision: str) -> str:
    """Return a page of the repository with full links, at a revision."""

    def full(link: re.Match[str]) -> str:
        kind = "raw" if link[2].endswith(PICTURES) else "blob"
        return f"{link[1]}{repository}/{kind}/{revision}/{link[2]}"

    return RELATIVE.sub(full, page)
