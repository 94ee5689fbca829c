"""Files of secrets, as they must be: for their owner alone."""

from pathlib import Path


def write_secret(path: Path, content: bytes) -> Path:
    """Write the file; only its owner can read it, whatever the umask of the tests is."""
    path.touch(0o600)
    path.chmod(0o600)
    path.write_bytes(content)
    return path
