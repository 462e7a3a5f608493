"""Set `eddystone.md` as `eddystone.pdf`; the same text gives the same bytes.

Knows the Markdown that the example uses: two levels of heading, paragraphs, `*captions*`, and one kind
of table. Needs reportlab, which the `dev` extra installs: `python examples/build_pdf.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

from reportlab.lib import colors
from reportlab.lib.enums import TA_CENTER, TA_JUSTIFY
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.platypus import Flowable, KeepTogether, Paragraph, SimpleDocTemplate, Table, TableStyle

SOURCE = Path(__file__).with_name("eddystone.md")
INK = colors.HexColor("#1f2d3d")
RULE = colors.HexColor("#b8c4d0")
SHADE = colors.HexColor("#eef2f6")

BODY = ParagraphStyle("body", fontName="Times-Roman", fontSize=12, leading=18, spaceAfter=9, alignment=TA_JUSTIFY)
CELL = ParagraphStyle("cell", parent=BODY, fontSize=10, leading=13, spaceAfter=0, alignment=0)
HEAD = ParagraphStyle("head", parent=CELL, fontName="Helvetica-Bold", textColor=INK)
CAPTION = ParagraphStyle(
    "caption", parent=BODY, fontName="Times-Italic", fontSize=10, spaceBefore=4, alignment=TA_CENTER
)
SUBTITLE = ParagraphStyle("subtitle", parent=CAPTION, fontSize=13, leading=18, spaceBefore=0, spaceAfter=16)
TITLE = ParagraphStyle(
    "title", fontName="Helvetica-Bold", fontSize=22, leading=28, spaceAfter=4, textColor=INK, alignment=TA_CENTER
)
SECTION = ParagraphStyle(
    "section", fontName="Helvetica-Bold", fontSize=14, leading=18, spaceBefore=10, spaceAfter=6, textColor=INK,
    keepWithNext=True,
)  # fmt: skip


def build(markdown: str, path: Path) -> None:
    """Write the text as an A4 PDF with its title in the metadata and numbered pages."""
    blocks = re.split(r"\n\s*\n", markdown.strip())
    title = blocks[0].removeprefix("# ")
    document = _NumberedPages(
        str(path), pagesize=A4, title=title, author="The d2a authors", subject="Example document of d2a",
        leftMargin=27 * mm, rightMargin=27 * mm, topMargin=24 * mm, bottomMargin=24 * mm,
        invariant=1,  # no time stamp and no random identifier
    )  # fmt: skip
    document.build(_flowables(blocks))


def _flowables(blocks: list[str]) -> list[Flowable]:
    flowables: list[Flowable] = []
    for block in blocks:
        flowable = _flowable(block, is_subtitle=len(flowables) == 1)
        if isinstance(flowable, Paragraph) and flowable.style is CAPTION:
            flowable = KeepTogether([flowables.pop(), flowable])
        flowables.append(flowable)
    return flowables


def _flowable(block: str, *, is_subtitle: bool) -> Flowable:
    text = " ".join(block.splitlines())
    if text.startswith("## "):
        return Paragraph(text.removeprefix("## "), SECTION)
    if text.startswith("# "):
        return Paragraph(text.removeprefix("# "), TITLE)
    if text.startswith("|"):
        return _table(block)
    if text.startswith("*"):
        return Paragraph(text.strip("*"), SUBTITLE if is_subtitle else CAPTION)
    return Paragraph(text, BODY)


def _table(block: str) -> Table:
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines())
    cells = [[Paragraph(cell, HEAD) for cell in header]]
    cells += [[Paragraph(cell, CELL) for cell in row] for row in rows]
    style = [
        ("BACKGROUND", (0, 0), (-1, 0), SHADE),
        ("LINEBELOW", (0, 0), (-1, -1), 0.5, RULE),
        ("VALIGN", (0, 0), (-1, -1), "MIDDLE"),
    ]
    return Table(cells, colWidths=[w * mm for w in (18, 40, 20, 44, 30)], style=TableStyle(style), spaceBefore=6)


class _NumberedPages(SimpleDocTemplate):
    def afterPage(self) -> None:  # reportlab's name for it; what is drawn last is read last
        self.canv.setFont("Helvetica", 9)
        self.canv.setFillColor(INK)
        self.canv.drawCentredString(A4[0] / 2, 13 * mm, str(self.page))


if __name__ == "__main__":
    build(SOURCE.read_text(encoding="utf-8"), SOURCE.with_suffix(".pdf"))
