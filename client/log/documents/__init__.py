"""What the metadata store holds of logs: the documents of both layouts, and of cursors."""
