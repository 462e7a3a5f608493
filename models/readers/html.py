"""HTML to text: headings as `#` lines, list items as `- `, table rows as `cell | cell`.

The tree is walked with a stack of our own, since mail programs nest thousands of elements. What a browser
does not show, navigation and page furniture are left out; everything else stays, in contrast to article
extractors, which drop lists inside table cells and the like.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from models.readers.clean import damage, normalise, squash, superscript, tidy
from models.readers.encoding import decode
from models.readers.extract import Extract, Progress

_SKIPPED = re.compile(
    "head|script|style|noscript|template|svg|nav|footer|button|select|textarea|iframe|object|video|audio|"
    "canvas|dialog|math|annotation"
)
_SKIPPED_ROLES = re.compile("navigation|contentinfo|search|menu|menubar|toolbar|dialog")
_SKIPPED_CLASSES = re.compile(
    r"(^|\s)(mw-editsection|mw-jump-link|mw-portlet\S*|catlinks|printfooter|navbox\S*|noprint|breadcrumbs?"
    r"|sr-only|visually-hidden|screen-reader-text)(\s|$)"
)
_HIDDEN_STYLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.I)
_PARAGRAPHS = re.compile(
    "p|div|section|article|main|header|aside|blockquote|figure|figcaption|table|caption|ul|ol|dl|pre|"
    "form|fieldset|address|hr|body|details|summary|h1|h2|h3|h4|h5|h6"
)
_LINES = re.compile("li|dt|dd|tr|br|option|legend")
_REFERENCE_MARK = re.compile(r"\[\s*(\w{1,4}|note \d+|citation needed|update)\s*\]", re.I)
_CHARSET = re.compile(rb"<(?:meta|\?xml)[^>]*?(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]+)", re.I)
_EMPTY_ITEM = re.compile(r"^-[ \t]*\n(?=\n|- |\Z)|^-[ \t]*\Z", re.MULTILINE)
# In XHTML these may be empty; an HTML parser would take the rest of the page for their content.
_XHTML = "http://www.w3.org/1999/xhtml"
_SELF_CLOSED = re.compile(r"<(a|b|div|em|i|iframe|li|p|script|span|strong|style|td|textarea|th|title)(\s[^<>]*)?/>")
_HEAD_CHARACTERS = 4096
_MAIN_SHARE = 0.5
_LONG_CELL_CHARACTERS = 600


def extract(data: bytes, *, name: str, password: str | None, on_page: Progress) -> Extract:
    """Read an HTML page; `name` and `password` are not needed."""
    declared = _CHARSET.search(data[:_HEAD_CHARACTERS])
    raw, warnings = decode(data, declared=declared[1].decode("ascii", "ignore") if declared else None)
    text, title = render(raw)
    on_page(1, 1)
    return Extract(pages=[text], titles=[title], warnings=[*warnings, *damage([text])])


def render(html: str) -> tuple[str, str | None]:
    """Return the text of an HTML page, and its title.

    Args:
        html: A page or a fragment, well-formed or not.
    """
    from selectolax.lexbor import LexborHTMLParser

    if _XHTML in html[:_HEAD_CHARACTERS]:
        html = _SELF_CLOSED.sub(r"<\1\2></\1>", html)
    tree = LexborHTMLParser(html.replace("\0", ""))
    if tree.body is None:
        return "", None
    text = _Renderer().render(tree.body)
    mains = tree.css("main, [role=main]") or tree.css("article")
    if len(mains) == 1:
        main = _Renderer().render(mains[0])
        text = main if len(main) >= _MAIN_SHARE * len(text) else text
    return text, _page_title(tree)


def _page_title(tree: Any) -> str | None:
    """The `title` element; the first heading where the title only adds the name of the site to it."""
    title = tree.css_first("head title") or tree.css_first("title")
    heading = tree.css_first("h1")
    title_text = squash(title.text()) if title else ""
    heading_text = squash(heading.text()) if heading else ""
    return heading_text if heading_text and heading_text in title_text else title_text or heading_text or None


class _Renderer:
    """Writes the text of a subtree; `_buffers` has one entry for each table cell that is open."""

    def __init__(self) -> None:
        self._buffers: list[list[str]] = [[]]
        self._rows: list[list[str]] = []
        self._pre_depth = 0

    def render(self, root: Any) -> str:
        for node, enters in _walk(root):
            if node.tag == "-text":
                self._text(node.text_content or "")
            elif node.tag == "sup" and enters:
                self._text(_raised(squash(node.text())))
            elif enters:
                self._enter(node)
            else:
                self._leave(node)
        return tidy(_EMPTY_ITEM.sub("", normalise("".join(self._buffers[0]))))

    def _text(self, text: str) -> None:
        if self._pre_depth == 0:
            text = re.sub(r"\s+", " ", text)
            if self._ends_with((" ", "\n")):
                text = text.lstrip(" ")
        if text:
            self._buffers[-1].append(text)

    def _enter(self, node: Any) -> None:
        tag = node.tag
        if tag in ("td", "th"):
            self._buffers.append([])
            return
        self._break(tag)
        if tag == "tr":
            self._rows.append([])
        elif tag == "pre":
            self._pre_depth += 1
        elif tag == "li" and not self._ends_with(("- ",), start=False):
            self._buffers[-1].append("- ")
        elif len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            self._buffers[-1].append("#" * int(tag[1]) + " ")

    def _leave(self, node: Any) -> None:
        tag = node.tag
        if tag in ("td", "th") and len(self._buffers) > 1:
            cell = "".join(self._buffers.pop()).strip()
            (self._rows[-1] if self._rows else self._buffers[-1]).append(cell)
            return
        if tag == "tr" and self._rows:
            self._buffers[-1].append(_row(self._rows.pop()))
        elif tag == "pre":
            self._pre_depth -= 1
        if tag != "br":
            self._break(tag)

    def _break(self, tag: str) -> None:
        """Begin a new line for a block, after a blank line for a paragraph."""
        if tag == "br":
            self._buffers[-1].append("\n")
        elif _PARAGRAPHS.fullmatch(tag) and not self._ends_with(("\n\n", "- ")):
            self._buffers[-1].append("\n\n")
        elif _LINES.fullmatch(tag) and not self._ends_with(("\n", "- ")):
            self._buffers[-1].append("\n")

    def _ends_with(self, endings: tuple[str, ...], *, start: bool = True) -> bool:
        """Whether the buffer ends so; `start` is what an empty buffer counts as."""
        buffer = self._buffers[-1]
        return buffer[-1].endswith(endings) if buffer else start


def _walk(root: Any) -> Iterator[tuple[Any, bool]]:
    """Yield each visible element on entry and on exit, and each text once, without recursion."""
    yield root, True
    stack = [(root, root.child)]
    while stack:
        parent, node = stack.pop()
        if node is None:
            yield parent, False
            continue
        stack.append((parent, node.next))
        if node.tag == "-text" or node.tag == "sup":
            yield node, True
        elif not node.tag.startswith(("-", "!")) and not _is_hidden(node):
            yield node, True
            stack.append((node, node.child))


def _is_hidden(node: Any) -> bool:
    if _SKIPPED.fullmatch(node.tag):
        return True
    attributes = node.attributes
    return bool(attributes) and (
        "hidden" in attributes
        or attributes.get("aria-hidden") == "true"
        or bool(_SKIPPED_ROLES.fullmatch(attributes.get("role") or ""))
        or bool(_HIDDEN_STYLE.search(attributes.get("style") or ""))
        or bool(_SKIPPED_CLASSES.search(attributes.get("class") or ""))
    )


def _raised(text: str) -> str:
    """A superscript; marks such as [3], which point to a list of references, say nothing in the text."""
    return "" if not _REFERENCE_MARK.sub("", text).strip() else superscript(text)


def _row(cells: list[str]) -> str:
    """A table row; cells of a table that only lays out a page become paragraphs."""
    filled = [cell for cell in cells if cell]
    if len(filled) == 1 or any(len(cell) > _LONG_CELL_CHARACTERS and "\n\n" in cell for cell in filled):
        return "\n\n".join(filled)
    return " | ".join(map(_one_line, filled))


def _one_line(cell: str) -> str:
    """A cell with a list or line breaks in it, as `Bill Gates, Paul Allen`."""
    lines = [line.removeprefix("- ").strip(" ,") for line in cell.split("\n")]
    return ", ".join(filter(None, lines)).replace(", (", " (")
