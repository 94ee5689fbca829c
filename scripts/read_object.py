"""Print the entries of an object of the archive, without Octavo: python scripts/read_object.py FILE

docs/disk-format.md describes the bytes. Checks the object's own checksum, and that its entries are those of its head.
"""

import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path


def entries_of(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The ledger id, entry id and payload of each entry."""
    if zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise ValueError("the object is damaged, or cut off")
    magic, version, _, token, ledger_id, _, _, _, ranges, key_id = struct.unpack_from(">8sII16sQHHHHQ", data)
    end_magic, _, _, end_token, count, _, stop, _ = struct.unpack_from(">8sII16sQQQI", data, len(data) - 68)
    if (magic, version, key_id, end_magic) != (b"OCTVARCH", 1, 0, b"OCTVATAL") or token != end_token:
        raise ValueError("not an object of format 1")
    wanted = [
        entry_id
        for first, last in struct.iter_unpack(">QQ", data[56 : 56 + 16 * ranges])
        for entry_id in range(first, last + 1)
    ]
    offset, found = 60 + 16 * ranges, []
    while offset < stop:
        _, digest, _, payload_bytes, of_ledger, entry_id = struct.unpack_from(">BBHIQQ", data, offset)
        payload_at = offset + (48 if digest == 1 else 80)
        offset = payload_at + payload_bytes + 4
        found.append(entry_id)
        yield of_ledger, entry_id, data[payload_at : offset - 4]
    if found != wanted or len(found) != count:
        raise ValueError(f"the entries are not those of the head of ledger {ledger_id}")


if __name__ == "__main__":
    for ledger, entry, payload in entries_of(Path(sys.argv[1]).read_bytes()):
        print(ledger, entry, payload)
