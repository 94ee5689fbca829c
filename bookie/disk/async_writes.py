"""Writes that the kernel performs asynchronously: submitted by the event loop, which is notified when they are durable.

A blocking write in a thread costs a lone add two wake-ups and two switches of the interpreter lock, a quarter of its
time. Linux can perform direct writes without a thread (``io_submit``, with an eventfd for the completion). Python has
no binding for these system calls, so this module calls them by number.

Nothing here blocks: the kernel refuses a write that it cannot start at once (``RWF_NOWAIT``: blocks not yet written, a
full queue, an older file system) with EAGAIN or EOPNOTSUPP, and the caller uses a thread instead.
"""

import asyncio
import ctypes
import os
import platform
import struct
import sys
from collections.abc import Callable

SYSTEM_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""Machine -> numbers of io_setup, io_destroy, io_getevents, io_submit."""

_CONTROL_BLOCK = struct.Struct("<QIIHhIQQqQII")
"""struct iocb: data, key, flags of the write, opcode, priority, descriptor, address, bytes, offset, reserved, flags,
eventfd."""
_EVENT = struct.Struct("<QQqq")
"""struct io_event: data, control block, result, second result."""

_PWRITE = 1
_TELL_EVENTFD = 1
_RWF_DSYNC, _RWF_NOWAIT = 0x2, 0x8

OUTSTANDING_MAX = 64
"""Maximum of concurrent writes in one context: a bookie needs one for each of its journals."""

type SystemCall = Callable[..., int]
"""``syscall`` of the C library: the number of a system call and its arguments."""

type OnWritten = Callable[[int], None]
"""Called with the bytes written, all durable, or a negative errno; in a step of the event loop. Must not raise."""


def c_system_call() -> SystemCall:
    """The C library's."""
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    call: SystemCall = syscall
    return call


class AsyncWrites:
    """One kernel context for asynchronous writes. Used from one event loop."""

    def __init__(self, syscall: SystemCall, calls: tuple[int, int, int, int], context: int) -> None:
        """Use :meth:`open`."""
        self._syscall = syscall
        self._destroy = (ctypes.c_long(calls[1]), ctypes.c_ulong(context))
        self._events = ctypes.create_string_buffer(_EVENT.size * OUTSTANDING_MAX)
        no_wait = ctypes.create_string_buffer(16)
        self._reap = (ctypes.c_long(calls[2]), self._destroy[1], ctypes.c_long(0), ctypes.c_long(OUTSTANDING_MAX),
                      self._events, no_wait)  # fmt: skip
        # The kernel copies the control block before io_submit returns, so one is enough.
        self._block = ctypes.create_string_buffer(_CONTROL_BLOCK.size)
        blocks = (ctypes.c_void_p * 1)(ctypes.addressof(self._block))
        self._submit = (ctypes.c_long(calls[3]), self._destroy[1], ctypes.c_long(1), blocks)
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._under_way: dict[int, OnWritten] = {}
        self._number = 0
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._eventfd, self._completed)

    @classmethod
    def open(cls, syscall: SystemCall | None = None) -> "AsyncWrites | None":
        """A context for the running loop; None where the system has none (not Linux, a sandbox). ``syscall``: in place
        of the C library's."""
        calls = SYSTEM_CALLS.get(platform.machine())
        if calls is None or sys.platform != "linux" or sys.byteorder != "little":
            return None
        syscall = syscall or c_system_call()
        context = ctypes.c_ulong(0)
        if syscall(ctypes.c_long(calls[0]), ctypes.c_long(OUTSTANDING_MAX), ctypes.byref(context)) != 0:
            return None
        return cls(syscall, calls, context.value)

    def write_and_sync(self, descriptor: int, address: int, size: int, offset: int, on_written: OnWritten) -> bool:
        """Start writing ``size`` bytes of memory at ``offset``; they must not change until ``on_written`` is called.

        Returns False, without any effect, when the kernel does not accept the write.
        """
        if len(self._under_way) >= OUTSTANDING_MAX:
            return False
        self._number = number = self._number + 1
        _CONTROL_BLOCK.pack_into(
            self._block, 0, number, 0, _RWF_DSYNC | _RWF_NOWAIT, _PWRITE, 0, descriptor, address, size, offset, 0,
            _TELL_EVENTFD, self._eventfd,
        )  # fmt: skip
        if self._syscall(*self._submit) != 1:
            return False
        self._under_way[number] = on_written
        return True

    def _completed(self) -> None:
        os.eventfd_read(self._eventfd)
        count = self._syscall(*self._reap)
        for at in range(count):
            number, _, result, _ = _EVENT.unpack_from(self._events, at * _EVENT.size)
            self._under_way.pop(number)(result)

    def close(self) -> None:
        """Release the context. The kernel finishes the writes under way first; their callbacks are not called."""
        self._loop.remove_reader(self._eventfd)
        self._syscall(*self._destroy)
        os.close(self._eventfd)
