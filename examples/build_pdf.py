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
from reportlab.platypus import Flowable, KeepTogether, Paragraph, SimpleDocTemplate

SOURCE = Path(__file__).with_name("eddystone.md")
INK = colors.HexColor("#1f2d3d")
RULE = colors.HexColor("#b8c4d0")
SHADE = colors.HexColor("#eef2f6")
ROW_HEIGHT = 19
COLUMNS = [x * mm for x in (2, 20, 60, 80, 124)]  # where a column begins

BODY = ParagraphStyle("body", fontName="Times-Roman", fontSize=12, leading=18, spaceAfter=9, alignment=TA_JUSTIFY)
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
        return _Table(block)
    if text.startswith("*"):
        return Paragraph(text.strip("*"), SUBTITLE if is_subtitle else CAPTION)
    return Paragraph(text, BODY)


class _Table(Flowable):
    """A table whose rows are one text object each, so that a row is read as a line.

    reportlab's own table writes every cell as a text of its own, and readers put each on its own line.
    """

    def __init__(self, block: str) -> None:
        super().__init__()
        header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines())
        self.rows = [header, *rows]
        self.height = len(self.rows) * ROW_HEIGHT
        self.spaceBefore = 6

    def wrap(self, width: float, _height: float) -> tuple[float, float]:
        """Return the size: the whole width, and a fixed height a row."""
        self.width = width
        return width, self.height

    def draw(self) -> None:
        """Draw the rows from the top, a rule below each and a shade behind the first."""
        canvas = self.canv
        canvas.setFillColor(SHADE)
        canvas.rect(0, self.height - ROW_HEIGHT, self.width, ROW_HEIGHT, stroke=0, fill=1)
        canvas.setStrokeColor(RULE)
        canvas.setLineWidth(0.5)
        for number, row in enumerate(self.rows, start=1):
            bottom = self.height - number * ROW_HEIGHT
            canvas.line(0, bottom, self.width, bottom)
            text = canvas.beginText()
            text.setFont("Times-Roman" if number > 1 else "Helvetica-Bold", 10)
            text.setFillColor(INK)
            for column, cell in zip(COLUMNS, row, strict=True):
                text.setTextOrigin(column, bottom + 6)
                text.textOut(f"{cell}  ")
            canvas.drawText(text)


class _NumberedPages(SimpleDocTemplate):
    def afterPage(self) -> None:  # reportlab's name for it; what is drawn last is read last
        self.canv.setFont("Helvetica", 9)
        self.canv.setFillColor(INK)
        self.canv.drawCentredString(A4[0] / 2, 13 * mm, str(self.page))


if __name__ == "__main__":
    build(SOURCE.read_text(encoding="utf-8"), SOURCE.with_suffix(".pdf"))
