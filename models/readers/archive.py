"""Bounded access to the zip containers of Word and EPUB files."""

from __future__ import annotations

import zipfile
import zlib
from io import BytesIO
from xml.etree import ElementTree

from models.errors import DocumentError

_MAX_MEMBER_BYTES = 200_000_000


class Archive:
    """A zip file in memory that reads its members whole, up to a limit.

    Args:
        name: Of the file, for messages.

    Raises:
        DocumentError: Where the container is damaged.
    """

    def __init__(self, data: bytes, *, name: str) -> None:
        self.name = name
        try:
            self._zip = zipfile.ZipFile(BytesIO(data))
        except (zipfile.BadZipFile, ValueError, OSError) as e:
            raise self.damaged() from e
        self.members = self._zip.namelist()
        self._by_folded = {member.casefold(): member for member in self.members}

    def __contains__(self, member: str) -> bool:
        return member.casefold() in self._by_folded

    def read(self, member: str) -> bytes:
        """Return the bytes of `member`, whose name is compared without case.

        Raises:
            DocumentError: Where it is missing, damaged, encrypted or too large.
        """
        if member not in self:
            raise self.damaged(f"{member} is missing")
        info = self._zip.getinfo(self._by_folded[member.casefold()])
        if info.file_size > _MAX_MEMBER_BYTES:
            raise DocumentError(
                f"{self.name}: {member} unpacks to {info.file_size:,} bytes, more than {_MAX_MEMBER_BYTES:,}",
                hint="Split the document",
            )
        try:
            return self._zip.read(info)
        except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, OSError, ValueError) as e:
            raise self.damaged(f"{member} cannot be unpacked") from e

    def xml(self, member: str) -> ElementTree.Element:
        """Return the root element of an XML member.

        Raises:
            DocumentError: As for `read`, and where it is not well-formed.
        """
        try:
            return ElementTree.fromstring(self.read(member))
        except ElementTree.ParseError as e:
            raise self.damaged(f"{member} is not well-formed") from e

    def damaged(self, detail: str = "the container cannot be opened") -> DocumentError:
        """Return the error that says that the file is damaged."""
        return DocumentError(f"{self.name}: is cut short or damaged ({detail})", hint="Download or export it again")


def local_name(element: ElementTree.Element) -> str:
    """Return the tag without its namespace: the strict and the usual Word vocabulary differ in nothing else."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def attribute(element: ElementTree.Element, name: str) -> str | None:
    """Return the attribute called `name` in any namespace."""
    return next((value for key, value in element.attrib.items() if key.rpartition("}")[2] == name), None)
