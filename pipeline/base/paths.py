"""Makes the paths in options absolute. Loads no client: every look at a format's options calls it, in a new process."""

from dataclasses import replace
from pathlib import Path

from octavo.pipeline.base.options import ClusterOptions

_SQLITE = "sqlite:///"


def settled(options: ClusterOptions) -> ClusterOptions:
    """The options with absolute paths, because executors have other working directories."""
    uri = options.metadata_uri
    if uri.startswith(_SQLITE) and not uri.startswith(f"{_SQLITE}/"):
        uri = _SQLITE + str(Path(uri.removeprefix(_SQLITE)).resolve())
    tls = options.tls
    if tls is not None:
        tls = replace(tls, ca=_absolute(tls.ca), certificate=_absolute(tls.certificate), key=_absolute(tls.key))
    password_file, key_file = _absolute(options.password_file), _absolute(options.key_file)
    return replace(options, metadata_uri=uri, password_file=password_file, tls=tls, key_file=key_file)


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).resolve())
