"""Templates of prompts, with a name and a version."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from lastword.errors import InputError

# The readings of a blind prompt: depth L, every depth and T, or none.
Blind = Literal["base", "all", "none"]

AS_IT_STANDS = "{{ prompt }}"


@dataclass(frozen=True)
class Template:
    """A Jinja template with its name and version; every run records all three.

    Attributes:
        name: `benchmark/variant`, or `user/stem` for a user's file.
        version: A version that changes with the text.
        text: Jinja source with the fields of an example; Jinja drops a newline at its end.
    """

    name: str
    version: str
    text: str

    @property
    def variant(self) -> str:
        """The name without its benchmark: `own6` of `truthfulqa/own6`."""
        return self.name.split("/", 1)[1]

    @property
    def sha256(self) -> str:
        """Digest of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def render(self, fields: Mapping[str, Any]) -> str:
        """Return the prompt for one example; InputError if the template does not render.

        The template is not trusted: it runs in Jinja's sandbox with only these fields.
        """
        from jinja2 import TemplateError

        try:
            return str(_compiled(self.text).render(fields))
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            names = ", ".join(fields)
            raise InputError(
                f"template {self.name} does not render: {error}; its fields are {names}"
            ) from error

    @classmethod
    def from_file(cls, path: Path) -> "Template":
        """Return a user's template; its version is the digest of its text."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read the template {path}: {error}") from error
        digest = hashlib.sha256(text.encode()).hexdigest()
        return cls(name=f"user/{path.stem}", version=digest[:12], text=text)

    def to_dict(self) -> dict[str, str]:
        """Return the record of the template."""
        name, version = self.name, self.version
        return {"name": name, "version": version, "sha256": self.sha256, "text": self.text}


def template_name(template: Mapping[str, str]) -> str:
    """Return a template's name, version and digest of its text, from its `to_dict`."""
    return f"{template['name']} {template['version']} ({template['sha256'][:12]})"


@lru_cache(maxsize=32)
def _compiled(text: str) -> Any:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # Prompts are plain text, so nothing is escaped here; pages escape the prompts that they show.
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)
    return environment.from_string(text)
