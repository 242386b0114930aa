"""Makes the pages with the details of each claim from the committed values, which are too long to keep."""

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add ``evidence/NAME.md`` for each chapter, if the site has the page that leads to them."""
    if files.get_file_from_path("evidence.md"):
        for name, text in _details(Path(config.config_file_path).parent).items():
            files.append(File.generated(config, f"evidence/{name}.md", content=text))
    return files


def _details(root: Path) -> dict[str, str]:
    sys.path.insert(0, str(root))
    try:
        from benchmarks.evidence.page import details  # noqa: PLC0415 - the checkout is on the path now
    finally:
        sys.path.remove(str(root))
    return details()
