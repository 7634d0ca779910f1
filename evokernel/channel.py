"""Messages between our processes: one JSON object each over a Unix stream socket, with file descriptors beside it. Never pickles.

What comes from a runner is untrusted: its size is capped, and anything that is not one JSON object is a `ChannelError`.
"""

from __future__ import annotations

import array
import json
import os
import select
import socket
import time
from typing import Any

_HEADER_BYTES = 8
_MAX_FDS = 16
MAX_MESSAGE_BYTES = 64 << 20

Message = dict[str, Any]


class ChannelError(Exception):
    """The other side sent something that is no message of ours."""


class ChannelClosed(ChannelError):
    """The other side is gone."""


class ChannelTimeout(ChannelError):
    """No whole message came in time."""


class Channel:
    """One end of a socket pair. Not thread-safe; one request is answered by one reply."""

    def __init__(self, sock: socket.socket, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._sock = sock
        self._max_bytes = max_bytes
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    @classmethod
    def pair(cls, max_bytes: int = MAX_MESSAGE_BYTES) -> tuple[Channel, socket.socket]:
        """Our end, which takes messages up to `max_bytes`, and the socket to hand to another process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours, max_bytes), theirs

    @classmethod
    def from_fd(cls, fd: int) -> Channel:
        """The end that was inherited as descriptor `fd`."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Send one message, with descriptors if given.

        Raises:
            ChannelClosed: nobody reads any more.
        """
        payload = json.dumps(message, separators=(",", ":")).encode()
        data = len(payload).to_bytes(_HEADER_BYTES, "little") + payload
        try:
            if fds:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                sent = self._sock.sendmsg([data], rights)
                data = data[sent:]
            if data:
                self._sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosed("the other process is gone") from error

    def receive(self, timeout_s: float | None = None) -> Message:
        """The next message; descriptors that came with it are closed. See `receive_fds` for what is raised."""
        message, fds = self.receive_fds(timeout_s)
        for fd in fds:
            os.close(fd)
        return message

    def receive_fds(self, timeout_s: float | None = None) -> tuple[Message, list[int]]:
        """The next message and the descriptors that came with it.

        Raises:
            ChannelTimeout: no whole message within `timeout_s` seconds.
            ChannelClosed: the other side closed.
            ChannelError: not a message.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        fds: list[int] = []
        header = self._read(_HEADER_BYTES, deadline, fds)
        size = int.from_bytes(header, "little")
        if size > self._max_bytes:
            raise ChannelError(f"a message of {size} bytes; at most {self._max_bytes} are taken")
        try:
            message = json.loads(self._read(size, deadline, fds))
        except ValueError as error:
            raise ChannelError("not a JSON message") from error
        if not isinstance(message, dict):
            raise ChannelError("not a JSON object")
        return message, fds

    def _read(self, size: int, deadline: float | None, fds: list[int]) -> bytes:
        chunks = bytearray()
        while len(chunks) < size:
            if deadline is not None:
                left_ms = (deadline - time.monotonic()) * 1000
                if left_ms <= 0 or not self._poll.poll(left_ms):
                    raise ChannelTimeout("no answer in time")
            try:
                data, ancillary, _, _ = self._sock.recvmsg(size - len(chunks), socket.CMSG_SPACE(4 * _MAX_FDS))
            except ConnectionResetError as error:
                raise ChannelClosed("the other process is gone") from error
            for level, kind, raw in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    received = array.array("i")
                    received.frombytes(raw[: len(raw) - len(raw) % 4])
                    fds.extend(received)
            if not data:
                raise ChannelClosed("the other process is gone")
            chunks += data
        return bytes(chunks)

    def close(self) -> None:
        self._sock.close()
