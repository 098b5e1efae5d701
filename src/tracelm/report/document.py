"""One offline HTML file: style, data and scripts stand in it, and nothing else can enter.

Nothing that a model or a benchmark wrote reaches it as markup: templates escape what they show,
blocks of data are base64, the scripts set text alone, and the file's own policy lets run no script
but the two that stand in it and lets no request leave.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from tracelm import __version__
from tracelm.view.palette import LOOKS

_ASSETS = Path(__file__).parent / "assets"


def document(
    template: str,
    scripts: Sequence[str],
    blocks: Mapping[str, Any],
    *,
    assets: Path = _ASSETS,
    **shown: Any,
) -> str:
    """The whole file as one text.

    Args:
        template: Extends `document.html.j2`.
        scripts: Names of the scripts, in their order.
        blocks: Data for the scripts by name, already compressed.
        assets: Folder of the template and of scripts that are not the report's.
        shown: What the template shows.
    """
    files = FileSystemLoader([assets, _ASSETS])
    environment = Environment(
        loader=files,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sources = [files.get_source(environment, name)[0] for name in ("page.css", *scripts)]
    script = "(() => {\n'use strict';\n" + "\n".join(sources[1:]) + "})();"
    plotly = get_plotlyjs()
    return environment.get_template(template).render(
        version=__version__,
        script_hashes=Markup(f"{_hash(script)} {_hash(plotly)}"),
        css=Markup(sources[0]),
        looks={name: asdict(look) for name, look in LOOKS.items()},
        blobs={"plotly": compress_text(plotly), **blocks},
        script=Markup(script),
        **shown,
    )


def compress(value: Any) -> str:
    """JSON as gzip in base64; the same value gives the same text."""
    return compress_text(
        json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    )


def compress_text(text: str) -> str:
    """Text as gzip in base64."""
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
