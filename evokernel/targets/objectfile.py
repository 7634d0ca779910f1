"""Reading a 64-bit ELF shared object: sections, symbols, dynamic tags. Only what the checks of a candidate need."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR = 1, 2, 4
SHT_NOBITS, SHT_RELA, SHT_DYNAMIC = 8, 4, 6
STT_OBJECT, STT_TLS, STT_IFUNC = 1, 6, 10


@dataclass(frozen=True)
class Section:
    """One section header; `size` in bytes."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int

    @property
    def writable(self) -> bool:
        return bool(self.flags & SHF_WRITE and self.flags & SHF_ALLOC)


@dataclass(frozen=True)
class Symbol:
    """One symbol; `section` is an index, 0 for an undefined symbol."""

    name: str
    kind: int
    section: int


class ObjectFile:
    """An ELF file in memory.

    Raises:
        ValueError: not a little-endian 64-bit ELF file, or a truncated one.
    """

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        try:
            self.sections = self._read_sections()
        except struct.error as error:
            raise ValueError(f"truncated object file: {error}") from error

    def _read_sections(self) -> tuple[Section, ...]:
        if self.data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a little-endian 64-bit ELF file")
        (table,) = struct.unpack_from("<Q", self.data, 40)
        size, count, names_index = struct.unpack_from("<HHH", self.data, 58)
        rows = [struct.unpack_from("<IIQQQQIIQQ", self.data, table + i * size) for i in range(count)]
        names = rows[names_index][4]
        return tuple(Section(self._string(names + r[0]), r[1], r[2], r[4], r[5], r[6]) for r in rows)

    def _string(self, offset: int) -> str:
        return self.data[offset : self.data.index(b"\0", offset)].decode("utf-8", "replace")

    def section(self, name: str) -> Section | None:
        return next((s for s in self.sections if s.name == name), None)

    def bytes_of(self, section: Section) -> bytes:
        return b"" if section.kind == SHT_NOBITS else self.data[section.offset : section.offset + section.size]

    def _symbols(self, name: str) -> tuple[Symbol, ...]:
        table = self.section(name)
        if table is None:
            return ()
        strings = self.sections[table.link].offset
        rows = struct.iter_unpack("<IBBHQQ", self.bytes_of(table))
        return tuple(Symbol(self._string(strings + r[0]), r[1] & 15, r[3]) for r in rows)

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """All symbols, local ones too."""
        return self._symbols(".symtab")

    @cached_property
    def dynamic_symbols(self) -> tuple[Symbol, ...]:
        return self._symbols(".dynsym")

    @property
    def undefined(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.dynamic_symbols if s.section == 0 and s.name)

    @property
    def dynamic_tags(self) -> frozenset[int]:
        table = next((s for s in self.sections if s.kind == SHT_DYNAMIC), None)
        return frozenset(tag for tag, _ in struct.iter_unpack("<qQ", self.bytes_of(table))) if table else frozenset()

    @property
    def relocations(self) -> tuple[tuple[int, str], ...]:
        """(type, symbol name) of every dynamic relocation, in order."""
        found = []
        for section in self.sections:
            if section.kind == SHT_RELA and section.flags & SHF_ALLOC:
                for _, info, _ in struct.iter_unpack("<QQq", self.bytes_of(section)):
                    found.append((info & 0xFFFFFFFF, self.dynamic_symbols[info >> 32].name))
        return tuple(found)

    @property
    def code_bytes(self) -> int:
        return sum(s.size for s in self.sections if s.flags & SHF_EXECINSTR)

    def code_hash(self) -> str:
        """Hash of code and read-only data, with the imported names but without the file's own; 16 hex digits."""
        sha = hashlib.sha256()
        for section in self.sections:
            if section.flags & SHF_ALLOC and (section.flags & SHF_EXECINSTR or section.name.startswith((".rodata", ".data.rel.ro"))):
                sha.update(section.size.to_bytes(8, "little") + self.bytes_of(section))
        sha.update("".join(f"{kind} {name}\n" for kind, name in self.relocations).encode())
        return sha.hexdigest()[:16]
