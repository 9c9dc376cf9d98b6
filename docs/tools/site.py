"""What the site needs beyond its pages: lists of pages, colours of code, and that no public name goes undocumented.

ProperDocs calls these functions (`hooks` in properdocs.yml). A line that is logged as a warning fails a strict build.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import algorithm_pages
import griffe
from properdocs.structure.files import File, Files
from pygments.formatters import HtmlFormatter

#: The modules whose `__all__` is the public interface, each with the page that shows it.
PUBLIC = {
    "semistream": "api/semistream.md",
    "semistream.sources": "api/sources.md",
    "semistream.spark": "api/spark.md",
    "semistream.testing": "api/testing.md",
}
#: Where the table of algorithms belongs on their first page.
TABLE = "<!-- the table of algorithms stands here on the site -->"
_log = logging.getLogger("mkdocs.semistream")


def on_config(config: Any) -> Any:
    """Complete the navigation; warn of public names without a docstring, and of those that no API page shows."""
    docs = Path(config["docs_dir"])
    for section in config["nav"]:
        for pages in section.values():
            if isinstance(pages, list) and "operators/README.md" in pages:
                pages += [f"operators/{each.name}.md" for each in algorithm_pages.described()]
            if isinstance(pages, list) and "decisions/README.md" in pages:
                pages += [f"decisions/{page.name}" for page in pages_of(docs / "decisions")]
    package = griffe.load("semistream", search_paths=["src"], resolve_aliases=True)
    for module, page in PUBLIC.items():
        found = package.modules_collection[module]
        shown = (docs / page).read_text(encoding="utf-8").splitlines()
        if not found.exports:
            _log.warning("%s has no __all__ that can be read without running it", module)
        for name in found.exports or ():
            if f"::: {module}.{name}" not in shown:
                _log.warning("%s.%s is public and not on the page %s", module, name, page)
        for path in undocumented(found):
            _log.warning("%s is public and has no docstring", path)
    return config


def pages_of(folder: Path) -> list[Path]:
    """The pages of a folder but its README, in order."""
    return sorted(page for page in folder.glob("*.md") if page.name != "README.md")


def on_files(files: Files, config: Any) -> Files:
    """Give every algorithm its page, whether or not somebody has written a part of it."""
    for each in algorithm_pages.described():
        path = f"operators/{each.name}.md"
        written = files.get_file_from_path(path)
        if written is not None:
            files.remove(written)
        files.append(File.generated(config, path, content=algorithm_pages.page(each)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Give the algorithms their table, and the decisions their list."""
    if page.file.src_uri == "operators/README.md":
        if TABLE not in markdown:
            _log.warning("%s has no place for the table: %s", page.file.src_uri, TABLE)
        return markdown.replace(TABLE, algorithm_pages.table())
    if page.file.src_uri != "decisions/README.md":
        return markdown
    pages = pages_of(Path(page.file.abs_src_path).parent)
    heads = {one.name: one.read_text(encoding="utf-8").split("\n", 1)[0] for one in pages}
    return "\n".join([markdown, *(f"- [{head.lstrip('# ')}]({name})" for name, head in heads.items())])


def undocumented(module: Any) -> Iterator[str]:
    """The names that a module exports, and the methods and properties of its classes, that nobody has described."""
    for name in module.exports or ():
        found = target(module[name])
        if found.docstring is None:
            yield found.path
        if found.is_class:
            yield from undocumented_members(found)


def undocumented_members(owner: Any) -> Iterator[str]:
    """Public methods and properties without a docstring of their own or of the class that they override."""
    for name, member in owner.all_members.items():
        member = target(member)
        if name.startswith("_") or not (member.is_function or "property" in member.labels):
            continue
        versions = [cls.members.get(name) for cls in (owner, *owner.mro())]
        if not any(version is not None and target(version).docstring for version in versions):
            yield member.path


def target(found: Any) -> Any:
    """What a name stands for, where it is imported from another module."""
    return found.final_target if found.is_alias else found


def on_post_build(config: Any) -> None:
    """Write the colours of code beside the pages."""
    sheet = Path(config["site_dir"]) / "css" / "code.css"
    sheet.parent.mkdir(parents=True, exist_ok=True)
    sheet.write_text(HtmlFormatter(style="default").get_style_defs(".highlight"), encoding="utf-8")
