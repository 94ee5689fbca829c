"""The checksum of whole objects: CRC-32 as zlib computes it. Pure."""

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # not built for this machine: zlib computes the same checksums, more slowly
    from zlib import crc32

__all__ = ["crc32"]
