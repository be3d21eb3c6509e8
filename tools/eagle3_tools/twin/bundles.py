"""Bundles of code objects for several GPUs, compressed or not.

Source: LLVM's "Clang Offload Bundler".
"""

import ctypes
import struct

TARGET = "gfx950"
_ZSTD = 1


def unbundled(data: bytes) -> bytes:
    """Return the code object for `TARGET` in a bundle, or the data if it is no bundle.

    Raises ValueError if the bundle has none, or is compressed by another method than zstd.
    """
    if data[:4] == b"CCOB":
        data = _decompressed(data)
    if not data.startswith(b"__CLANG_OFFLOAD_BUNDLE__"):
        return data
    (count,) = struct.unpack_from("<Q", data, 24)
    at, found = 32, []
    for _ in range(count):
        offset, size, length = struct.unpack_from("<QQQ", data, at)
        found.append(data[at + 24 : at + 24 + length].decode())
        at += 24 + length
        if TARGET in found[-1]:
            return data[offset : offset + size]
    raise ValueError(f"no code for {TARGET} in a bundle of {found}")


def _decompressed(data: bytes) -> bytes:
    """Unpack a compressed bundle; the header's sizes have 32 bits before version 3."""
    version, method = struct.unpack_from("<HH", data, 4)
    header, where = {1: (20, 8), 2: (24, 12)}.get(version, (32, 16))
    (size,) = struct.unpack_from("<Q" if version >= 3 else "<I", data, where)
    if method != _ZSTD:
        raise ValueError(f"bundle compressed by method {method}, expected zstd ({_ZSTD})")
    zstd = ctypes.CDLL("libzstd.so.1")
    zstd.ZSTD_decompress.restype = ctypes.c_size_t
    zstd.ZSTD_decompress.argtypes = [
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
    ]
    out = ctypes.create_string_buffer(size)
    done = zstd.ZSTD_decompress(out, size, data[header:], len(data) - header)
    if done != size:
        raise ValueError(f"bundle of version {version}: {done} bytes instead of {size}")
    return out.raw
