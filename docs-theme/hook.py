"""What MkDocs is told beside its options: the report's style, and tables and code that scroll."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

STYLE = Path(__file__).parent.parent / "src/lastword/records/assets/page.css"


def on_files(files: Files, config: Any) -> Files:
    """Put the report's style beside the pages: there is one home for how ours look."""
    files.append(File.generated(config, "page.css", abs_src_path=str(STYLE)))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Let wide tables and code scroll in a frame of their own, by the keyboard too."""
    html = html.replace("<table>", '<div class="scroll" tabindex="0" role="group"><table>')
    return html.replace("</table>", "</table></div>").replace("<pre>", '<pre tabindex="0">')
