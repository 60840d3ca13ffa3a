"""Runs a program whose calls of CUDA's driver are answered here.

Why a process of its own, and not Python within the program: programs are written in any language,
and those in Python have another version of it, or other packages; a fault of the emulator must not
leave a program half alive; and the memory can be shared, while an interpreter cannot. So a library
in C, compiled on first use, is put where programs look for ``libcuda.so.1``. It maps the memory of
the GPU, moves bytes itself, and sends all other calls over a socket: the number of the function and
its arguments; back come a status, what kernels have printed, and the results. Calls are answered
one after the other, those of several processes too, each of which has memory of its own.

A message is: bytes of the arguments and the number of the function (4 bytes each), then for each
argument 8 bytes; for texts and arrays 8 bytes of length (all ones: NULL), then so many. An answer:
the status, the bytes of what was printed, and those of the results (4 each), and then both.
"""

from __future__ import annotations

import array
import contextlib
import os
import selectors
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from triton_ext.emulator.errors import EmulationError
from triton_ext.emulator.host.cuda.device import Device
from triton_ext.emulator.host.cuda.heap import SIZE, SPACE, START
from triton_ext.emulator.host.cuda.interface import Function, functions
from triton_ext.emulator.host.cuda.library import build, preloaded
from triton_ext.emulator.host.cuda.status import CudaError
from triton_ext.emulator.host.gpu import EmulatedGpu

SOCKET = "TRITON_EXT_CUDA"
"""The environment variable that tells the library where the emulator listens."""
XLA_FLAGS = "--xla_gpu_autotune_level=0"
"""XLA would run kernels to choose the fastest; there is no time here to choose by."""
_SKIPPED = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
"""JAX asks NVIDIA's libraries for their versions, and some of them do not start here."""
_HEADER, _ANSWER = struct.Struct("<II"), struct.Struct("<III")
_NULL = (1 << 64) - 1
_ENDED = 1_000_000
"""A status that ends the program."""


def _arguments(function: Function, data: bytes) -> list[Any]:
    """What a call was given."""
    found: list[Any] = []
    at = 0
    for each in function.parameters:
        if each.is_result:
            continue
        (number,) = struct.unpack_from("<Q", data, at)
        at += 8
        if each.kind in "sbat":
            content = None if number == _NULL else data[at : at + number]
            at += 0 if content is None else number
            found.append(content.decode() if each.kind == "s" and content is not None else content)
        elif each.kind == "i":
            found.append((number & 0x7FFFFFFF) - (number & 0x80000000))
        else:
            found.append(number & 0xFFFFFFFF if each.kind == "u" else number)
    return found


def _results(function: Function, values: Sequence[Any]) -> bytes:
    """What a call returns; results that it does not mention are 0."""
    places = [each for each in function.parameters if each.is_result]
    out = bytearray()
    for each, value in zip(places, [*values, *(0,) * (len(places) - len(values))], strict=True):
        if each.kind == "o":
            data = (
                value
                if isinstance(value, bytes)
                else (value & ((1 << 8 * each.number) - 1)).to_bytes(each.number, "little")
            )
            out += data
        else:
            data = value.encode() + b"\0" if isinstance(value, str) else value
            out += struct.pack("<Q", len(data)) + data
    return bytes(out)


class _Client:
    """A process of the program's that has loaded the library."""

    def __init__(self, connection: socket.socket, gpu: EmulatedGpu) -> None:
        self.connection, self.device = connection, Device(gpu)
        greeting = struct.pack("<QQQ", START, SIZE, SPACE)
        descriptors = array.array("i", [self.device.heap.file])
        connection.sendmsg([greeting], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])

    def close(self) -> None:
        self.connection.close()
        self.device.heap.close()

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.connection.recv(min(size - len(data), 1 << 20))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def answer(self, tell: Callable[[str], None], fault: Callable[[EmulationError], None]) -> None:
        """Answer one call.

        Args:
            tell: prints a line for the user.
            fault: is called with what a kernel does wrong, which ends the program.

        Raises:
            EOFError: the process has ended.
        """
        size, number = _HEADER.unpack(self._read(_HEADER.size))
        function = functions()[number]
        data = self._read(size)
        results, status = b"", 0
        try:
            values = getattr(self.device, function.handler)(*_arguments(function, data))
            results = _results(function, values)
        except CudaError as error:
            status = error.status
            if error.why:
                tell(f"{function.public_name}: {error.why}")
        except EmulationError as error:
            fault(error)
            status = _ENDED
        printed = self.device.printed.getvalue().encode()
        self.device.printed.seek(0)
        self.device.printed.truncate()
        answer = _ANSWER.pack(status, len(printed), len(results)) + printed + results
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.sendall(answer)


def _before(ours: str, name: str, between: str = ":") -> str:
    """A list that the environment has, with something before it."""
    given = os.environ.get(name)
    return f"{ours}{between}{given}" if given else ours


def run_program(
    command: Sequence[str],
    gpu: EmulatedGpu,
    tell: Callable[[str], None],
    fault: Callable[[EmulationError], None],
) -> int:
    """Run a program, and what it starts, on the emulated GPU.

    Args:
        command: the program and its arguments.
        tell, fault: see `_Client.answer`.

    Returns:
        The program's exit status; of one that a signal ended, 128 and the signal.

    Raises:
        LayoutError: there is no C compiler.
        OSError: the program cannot be started.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triton-ext-")))
        libraries = build()
        listening = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listening.bind(str(folder / "gpu"))
        listening.listen()
        environment = {
            **os.environ, SOCKET: str(folder / "gpu"),
            "LD_LIBRARY_PATH": _before(str(libraries), "LD_LIBRARY_PATH"),
            "LD_PRELOAD": _before(preloaded(libraries), "LD_PRELOAD"),
            "XLA_FLAGS": _before(XLA_FLAGS, "XLA_FLAGS", " "),
            _SKIPPED: os.environ.get(_SKIPPED, "1"),
        }  # fmt: skip
        child = subprocess.Popen(command, env=environment)
        waiting = stack.enter_context(selectors.DefaultSelector())
        waiting.register(listening, selectors.EVENT_READ)
        ended = os.pidfd_open(child.pid)
        stack.callback(os.close, ended)
        waiting.register(ended, selectors.EVENT_READ)
        clients: list[_Client] = []
        try:
            while True:
                ready = [key for key, _ in waiting.select()]
                calls = [key for key in ready if isinstance(key.data, _Client)]
                for key in calls:
                    try:
                        key.data.answer(tell, fault)
                    except (EOFError, ConnectionResetError):
                        waiting.unregister(key.fileobj)
                        clients.remove(key.data)
                        key.data.close()
                if any(key.fileobj is listening for key in ready):
                    client = _Client(listening.accept()[0], gpu)
                    clients.append(client)
                    waiting.register(client.connection, selectors.EVENT_READ, client)
                elif not calls and any(key.fileobj == ended for key in ready):
                    break
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
            for client in clients:
                client.close()
        status = child.wait()
        return 128 - status if status < 0 else status
