"""Whatever a process tree prints: drained at all times, kept in part, shown harmlessly."""

from __future__ import annotations

import os
import threading

KEPT_BYTES = 32 << 10  # at the head, and again at the tail


class Capture:
    """A pipe that is read to its end by a thread; the first and last 32 KiB are kept."""

    def __init__(self) -> None:
        self._read_fd, self.write_fd = os.pipe()
        self._head = bytearray()
        self._tail = bytearray()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._drain, name="capture", daemon=True)
        self._thread.start()

    def started(self) -> None:
        """The child has its copy of the writing end: drop ours, so that the pipe ends with the child's tree."""
        os.close(self.write_fd)

    def text(self) -> str:
        """What was kept, undecodable bytes replaced and control characters shown as escapes."""
        with self._lock:
            head, tail = bytes(self._head), bytes(self._tail)
        gap = "\n[...]\n" if len(tail) == KEPT_BYTES else ""
        return visible(head.decode("utf-8", "replace") + gap + tail.decode("utf-8", "replace"))

    def _drain(self) -> None:
        while chunk := os.read(self._read_fd, 1 << 16):
            with self._lock:
                room = KEPT_BYTES - len(self._head)
                self._head += chunk[:room]
                self._tail = (self._tail + chunk[max(room, 0) :])[-KEPT_BYTES:]
        os.close(self._read_fd)


def visible(text: str) -> str:
    """The text with every control character but newline and tab written as an escape."""
    return "".join(c if c in "\n\t" or c.isprintable() else f"\\x{ord(c):02x}" for c in text)
