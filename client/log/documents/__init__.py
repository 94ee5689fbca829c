"""The stored forms of logs: the documents of both layouts, and of cursors."""
