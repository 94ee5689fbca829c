"""Words and bytes: ids, errors, entries, quorums, messages and frames. Pure: no I/O, no clock, no randomness."""
