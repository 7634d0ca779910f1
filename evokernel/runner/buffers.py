"""Shared memory between judge and runner: one memfd for what a kernel may only read, one for what it may write.

Every buffer has a region of whole pages of its own. The runner maps the regions apart, with inaccessible pages between them, and
a buffer of the first slot, or of none, stands at the end of its region, rounded up to 256 bytes: running further past its end faults at
once, writing less far or before its start damages a guard pattern that the judge checks. Buffers of other slots stand elsewhere, with
the pattern on both sides, so that no kernel can tell the judge's memory by its ends. The size of both memfds is sealed. The read-only one
is also sealed against writing once the judge has mapped it, so nobody else can ever map it for writing: a store into an input or a weight
is a fault, not a wrong number later.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from .processes import libc

ALIGNMENT_BYTES = 256
GUARD_BYTE = 0x10 + secrets.randbelow(0xB0)  # another one in each process, and no byte that kernels write in rows
PAGE_BYTES = mmap.PAGESIZE

_F_SEAL_SIZE, _F_SEAL_FUTURE_WRITE = 0x1 | 0x2 | 0x4, 0x10  # no more seals, no shrinking, no growing
_F_ADD_SEALS = 1033
_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_NORESERVE = 0x1, 0x2, 0x10, 0x20, 0x4000

libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


@dataclass(frozen=True)
class Place:
    """Where a buffer is: `offset` and `region_bytes` of its region in the memfd, `lead_bytes` of guard before it in the region."""

    name: str
    offset: int
    region_bytes: int
    lead_bytes: int
    size_bytes: int


def lay_out(sizes: Iterable[tuple[str, int]]) -> tuple[tuple[Place, ...], int]:
    """Places for buffers of the given sizes in bytes, and the memfd's size."""
    places, offset = [], 0
    for name, size in sizes:
        used = max(-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES, ALIGNMENT_BYTES)
        first = name.partition("@")[2] in ("", "0")
        behind = 0 if first else ALIGNMENT_BYTES * (1 + secrets.randbelow(PAGE_BYTES // ALIGNMENT_BYTES - 1))
        region = -(-(ALIGNMENT_BYTES + used + behind) // PAGE_BYTES) * PAGE_BYTES  # always some guard in front
        places.append(Place(name, offset, region, region - used - behind, size))
        offset += region
    return tuple(places), max(offset, PAGE_BYTES)


class Arena:
    """The judge's side of one memfd with its buffers.

    Args:
        sizes: name and size in bytes of each buffer.
        sealed: no other process may ever map it for writing.
    """

    def __init__(self, sizes: Iterable[tuple[str, int]], *, sealed: bool) -> None:
        places, self.size_bytes = lay_out(sizes)
        self.places = {place.name: place for place in places}
        self.fd = os.memfd_create("evokernel", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, self.size_bytes)
        self._map = mmap.mmap(self.fd, self.size_bytes)
        self._view = memoryview(self._map)
        # The size of both is fixed: touching what the other side has cut off would end the judge by SIGBUS.
        fcntl.fcntl(self.fd, _F_ADD_SEALS, _F_SEAL_SIZE | (_F_SEAL_FUTURE_WRITE if sealed else 0))
        self.mend()

    def view(self, name: str) -> memoryview:
        """The bytes of a buffer, writable here."""
        place = self.places[name]
        start = place.offset + place.lead_bytes
        return self._view[start : start + place.size_bytes]

    def mend(self) -> None:
        """Write all guard patterns anew."""
        for place in self.places.values():
            self._guards(place, write=True)

    def damaged(self) -> list[str]:
        """Names of the buffers whose guard pattern has been written over."""
        return [name for name, place in self.places.items() if not self._guards(place, write=False)]

    def _guards(self, place: Place, *, write: bool) -> bool:
        end = place.offset + place.region_bytes
        start = place.offset + place.lead_bytes
        intact = True
        for low, high in ((place.offset, start), (start + place.size_bytes, end)):
            pattern = bytes([GUARD_BYTE]) * (high - low)
            if write:
                self._view[low:high] = pattern
            else:
                intact = intact and self._view[low:high] == pattern
        return intact

    def close(self) -> None:
        """Close the descriptor. The mapping goes when the last tensor over it does."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Window:
    """The runner's side: each region mapped on its own between inaccessible pages."""

    def __init__(self, fd: int, places: Iterable[Place], *, writable: bool) -> None:
        self._places = {place.name: place for place in places}
        self._writable = writable
        total = sum(p.region_bytes + PAGE_BYTES for p in self._places.values()) + PAGE_BYTES
        base = _checked(libc.mmap(None, total, _PROT_NONE, _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE, -1, 0))
        self._regions: dict[str, int] = {}
        at = base + PAGE_BYTES
        protection = _PROT_READ | (_PROT_WRITE if writable else 0)
        for place in self._places.values():
            _checked(libc.mmap(at, place.region_bytes, protection, _MAP_SHARED | _MAP_FIXED, fd, place.offset))
            self._regions[place.name] = at
            at += place.region_bytes + PAGE_BYTES
        os.close(fd)

    def address(self, name: str) -> int:
        """Where the buffer begins in this process."""
        return self._regions[name] + self._places[name].lead_bytes

    def ranges(self) -> dict[str, tuple[int, int]]:
        """First and one past the last address of each buffer."""
        return {n: (self.address(n), self.address(n) + p.size_bytes) for n, p in self._places.items()}

    def protect(self, name: str, *, writable: bool) -> None:
        """Make one buffer read-only, or writable again."""
        self._set(name, _PROT_READ | (_PROT_WRITE if writable else 0))

    def show(self, name: str, *, visible: bool) -> None:
        """Make one buffer inaccessible, or what it was mapped as again."""
        self._set(name, _PROT_READ | (_PROT_WRITE if self._writable else 0) if visible else _PROT_NONE)

    def _set(self, name: str, protection: int) -> None:
        if libc.mprotect(self._regions[name], self._places[name].region_bytes, protection) != 0:
            raise OSError(ctypes.get_errno(), "mprotect failed")


def _checked(address: int | None) -> int:
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap failed")
    return address
