"""The auditor: sees what is lost, and plans what is done about it."""
