"""Every limit of the wire protocol, each with the reason for its value. Both sides enforce them."""

ENTRY_PAYLOAD_BYTES_MAX = 4 * 1024 * 1024
"""Largest payload of one entry. Bigger entries would let one add hold up a whole group commit; applications split
them."""

FRAME_BYTES_MAX = 8 * 1024 * 1024
"""Largest frame body. Room for the largest entry with its header and for a full batch; bounds the memory that a
peer can make the other side hold."""

FRAME_PAYLOAD_BYTES_TARGET = 512 * 1024
"""Sealed bytes after which a sender starts the next ADD or READ frame. Keeps one frame's work well under a millisecond,
so that ledgers that share a connection are served in turn. One larger entry still travels, alone in its frame."""

ADD_ENTRIES_TARGET = 512
"""Entries after which a writer starts its next ADD frame. A turn's adds then travel as several frames, and while
bookies work on the first the writer seals the next. Large enough that a frame costs little
compared with its entries."""

ENTRIES_PER_FRAME_MAX = 4096
"""Most entries in one frame: bounds the per-frame work of a bookie where entries are tiny."""

REQUESTS_PER_CONNECTION_MAX = 1024
"""Most requests of one connection that a bookie holds unanswered. It stops reading from the socket at this number, and
a client queues locally instead of sending more."""

LONG_POLLS_PER_CONNECTION_MAX = 8192
"""Most long-poll READ_LACs that one connection may have waiting. They wait for another client's adds, so
they are counted apart: a client that follows a thousand ledgers can still add over the same connection."""

LONG_POLL_SECONDS_MAX = 60.0
"""Longest time a bookie holds a long-poll READ_LAC: below usual idle timeouts of middleboxes."""

E_MAX = 64
"""Largest ensemble: ack sets are bit masks and E also bounds the fan-out of a recovery's fence."""

HELLO_TIMEOUT_SECONDS = 10.0
"""A peer that has not sent its hello by then does not speak this protocol; its connection is closed."""

ERROR_MESSAGE_CHARACTERS_MAX = 1000
"""Longest text of an error frame: enough to name the thing and the remedy."""
