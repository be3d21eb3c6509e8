"""Execute kernels for the fake HIP: python -m eagle3_tools.twin.worker SOCKET.

Each connection is a device and gets a process. A message is an operation and its data; the answer
is a HIP status and data, or the status and a text.
"""

import array
import os
import signal
import socket
import struct
import sys
import time
import traceback
from collections import defaultdict
from dataclasses import replace
from functools import cached_property

import numpy as np

from eagle3_tools.amdgpu.emulator.launch import launch
from eagle3_tools.amdgpu.emulator.machine import Machine
from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.emulator.native.machine import NativeMachine, machine_of
from eagle3_tools.aot.amd.code_object import taken_arguments
from eagle3_tools.twin.code_objects import CodeObject
from eagle3_tools.twin.shared_memory import SharedMemory

LOAD, FUNCTION, LAUNCH, UNLOAD, PLACE, SYMBOL = 1, 2, 3, 5, 6, 7
LAUNCH_FAILURE = 719
NAN = 0x7FC0_0000
"""Value of registers and local memory at the start of a kernel: NaN as float32 and bfloat16."""
SLOWEST = 25
_RED_ZONE = "_ZN15stream_executor3gpu26RedzoneAllocatorKernelImplEPhhmPj"


class Function:
    """A kernel of a loaded code object. What was translated of it is kept."""

    def __init__(self, code: CodeObject, name: str):
        self.code, self.name = code, name

    @cached_property
    def machine(self) -> Machine | NativeMachine:
        """The machine of the kernel, which takes its arguments as words."""
        words = -(-self.code.entries[self.name][".kernarg_segment_size"] // 8)
        return machine_of(replace(self.code.kernels[self.name], arguments=({},) * words))


class Device:
    """The emulated device behind one connection."""

    def __init__(self, connection: socket.socket, memory: SharedMemory, number: int):
        self._connection, self._memory, self._number = connection, memory, number
        self._modules: dict[int, CodeObject | None] = {}
        self._functions: dict[int, Function] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._launches = self._instructions = 0
        self._translation_s = 0.0
        self._operations = {
            LOAD: self._load,
            FUNCTION: self._function,
            LAUNCH: self._launch,
            UNLOAD: self._unload,
            PLACE: self._place,
            SYMBOL: self._symbol,
        }

    def serve(self) -> None:
        """Answer messages until the program closes the connection."""
        while head := _receive(self._connection, 8):
            operation, size = struct.unpack("<II", head)
            data = _receive(self._connection, size)
            try:
                answer, status = self._operations[operation](data), 0
            except Exception as error:  # Whatever fails is a failed launch, as on hardware.
                if not isinstance(error, Fault):
                    traceback.print_exc()
                print(f"[twin] device {self._number}: {error}", file=sys.stderr, flush=True)
                answer, status = f"{type(error).__name__}: {error}".encode(), LAUNCH_FAILURE
            self._connection.sendall(struct.pack("<iI", status, len(answer)) + answer)

    def summary(self) -> str:
        """Describe the work so far, and with TWIN_TRACE the slowest kernels."""
        total = sum(self._seconds.values())
        lines = [
            f"[twin] device {self._number}: {self._launches} launches, {self._instructions} "
            f"wave instructions, {total:.1f} s, {self._translation_s:.1f} s to translate kernels"
        ]
        if int(os.environ.get("TWIN_TRACE", "0")):
            slowest = sorted(self._seconds.items(), key=lambda item: -item[1])[:SLOWEST]
            lines += [f"    {seconds:8.2f} s {name}" for name, seconds in slowest]
        return "\n".join(lines)

    def _load(self, data: bytes) -> bytes:
        number, code = len(self._modules) + 1, CodeObject(data)
        self._modules[number] = code
        return struct.pack("<IQ", number, len(code.image))

    def _place(self, data: bytes) -> bytes:
        number, address = struct.unpack("<IQ", data)
        image = self._module(number).placed(address)
        self._memory.write(address, np.frombuffer(image, np.uint8))
        return b""

    def _symbol(self, data: bytes) -> bytes:
        code = self._module(struct.unpack_from("<I", data)[0])
        value, size = code.symbols[data[4:].decode()]
        return struct.pack("<QQ", code.address + value, size)

    def _unload(self, data: bytes) -> bytes:
        self._modules[struct.unpack("<I", data)[0]] = None
        return b""

    def _module(self, number: int) -> CodeObject:
        code = self._modules[number]
        if code is None:
            raise Fault(f"module {number} is used after it was unloaded")
        return code

    def _function(self, data: bytes) -> bytes:
        code, name = self._module(struct.unpack_from("<I", data)[0]), data[4:].decode()
        entry, number = code.entries[name], len(self._functions) + 1
        self._functions[number] = Function(code, name)
        explicit = taken_arguments(entry)
        sizes = ".kernarg_segment_size", ".group_segment_fixed_size", ".vgpr_count"
        sizes += ".max_flat_workgroup_size", ".private_segment_fixed_size"
        words = [number, *(entry[size] for size in sizes), len(explicit)]
        for argument in explicit:
            words += [argument[".offset"], argument[".size"]]
        return struct.pack(f"<{len(words)}I", *words)

    def _launch(self, data: bytes) -> bytes:
        number, gx, gy, gz, tx, ty, tz, lds = struct.unpack_from("<8I", data)
        grid, threads = (gx, gy, gz), (tx, ty, tz)
        function, segment = self._functions[number], bytearray(data[32:])
        started = time.monotonic()
        self._launches += 1
        if function.name == _RED_ZONE:
            self._check_red_zone(segment)
        else:
            function.code.fill_hidden(function.name, segment, grid, threads)
            segment += bytes(-len(segment) % 8)
            machine = function.machine
            loaded = time.monotonic()
            self._translation_s += loaded - started
            started = loaded
            counts = launch(
                *(machine, self._memory, np.frombuffer(segment, np.uint64).tolist()),
                grid=grid,
                threads=threads,
                dynamic_lds=lds,
                poison=NAN,
            )
            self._instructions += sum(counts.instructions.values())
        self._seconds[function.name] += time.monotonic() - started
        return b""

    def _check_red_zone(self, segment: bytearray) -> None:
        """Count the changed bytes around a buffer, as XLA's autotuner does in 4 million waves."""
        where, pattern, size, count = struct.unpack_from("<QB7xQQ", segment)
        wrong = np.count_nonzero(self._memory.view(where, size) != pattern)
        self._memory.view(count, 4).view(np.uint32)[0] += wrong


def _receive(connection: socket.socket, size: int) -> bytes:
    """Return `size` bytes, or nothing if the program has closed the connection."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), 1 << 20))
        if not part:
            return b""
        data += part
    return bytes(data)


def _serve_connection(connection: socket.socket) -> None:
    hello, ancillary, _, _ = connection.recvmsg(32, socket.CMSG_SPACE(4))
    base, size, number, scratch = struct.unpack("<4Q", hello)
    (fd,) = array.array("i", ancillary[0][2][:4])
    device = Device(connection, SharedMemory(fd, base, size, scratch), number)
    device.serve()
    print(device.summary(), file=sys.stderr, flush=True)


def main() -> None:
    """Listen at the socket and fork for each connection."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(16)
        print("ready", flush=True)
        os.dup2(2, 1)  # Nobody reads further lines: kernels without a C form are named in the log.
        while True:
            connection, _ = listener.accept()
            if not os.fork():
                listener.close()
                _serve_connection(connection)
                os._exit(0)
            connection.close()


if __name__ == "__main__":
    main()
