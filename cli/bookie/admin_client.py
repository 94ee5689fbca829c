"""Asks a bookie on this host over the socket of its administration interface."""

import asyncio
import contextlib
import http
import http.client
import json
import socket
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.cli.running_cluster import read_state
from octavo.cli.session import CommandError
from octavo.protocol.errors import InvalidArgumentError

# ruff: noqa: PLC0415 - no other command needs a bookie's modules

ANSWER_SECONDS_MAX = 30.0
"""How long a bookie may take to answer one request."""

JOB_POLL_SECONDS = 0.2

UNIT_SETTINGS = Path("/etc/octavo")
"""Where the systemd unit ``octavo-bookie@NAME`` has its settings, in ``NAME.toml``."""


class RefusedError(CommandError):
    """The bookie has refused; ``status`` is that of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class AdminClient:
    """One bookie's administration interface. Each request has a connection of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def get(self, target: str, *, seconds_max: float = ANSWER_SECONDS_MAX) -> Any:
        """The JSON value of a GET. Raises :class:`CommandError`."""
        return await asyncio.to_thread(self._ask, "GET", target, None, seconds_max)

    async def text(self, target: str) -> str:
        """The text that answers a GET. Raises :class:`CommandError`."""
        return (await asyncio.to_thread(self._ask_for_bytes, "GET", target, None, ANSWER_SECONDS_MAX)).decode()

    async def post(self, target: str, value: Mapping[str, Any]) -> Any:
        """The JSON value of a POST. Raises :class:`CommandError`."""
        return await asyncio.to_thread(self._ask, "POST", target, json.dumps(value).encode(), ANSWER_SECONDS_MAX)

    async def delete(self, target: str) -> Any:
        """The JSON value of a DELETE. Raises :class:`CommandError`."""
        return await asyncio.to_thread(self._ask, "DELETE", target, None, ANSWER_SECONDS_MAX)

    async def wait_job(self, job: int) -> Mapping[str, Any]:
        """The outcome of a job, once it is over."""
        while True:
            seen: Mapping[str, Any] = await self.get(f"/api/v1/jobs/{job}")
            if seen["state"] != "running":
                return seen
            await asyncio.sleep(JOB_POLL_SECONDS)

    def _ask(self, method: str, target: str, body: bytes | None, seconds_max: float) -> Any:
        try:
            return json.loads(self._ask_for_bytes(method, target, body, seconds_max))
        except ValueError as error:
            raise CommandError(f"the bookie at {self.path} gave no answer in JSON: {error}") from error

    def _ask_for_bytes(self, method: str, target: str, body: bytes | None, seconds_max: float) -> bytes:
        connection = _UnixConnection(self.path, seconds_max)
        try:
            headers = {"Content-Type": "application/json"} if body is not None else {}
            connection.request(method, target, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except FileNotFoundError:
            raise CommandError(f"no bookie listens at {self.path}; is it running?") from None
        except ConnectionRefusedError:
            raise CommandError(f"no bookie listens at {self.path} any more; start it") from None
        except PermissionError:
            raise CommandError(f"{self.path} belongs to another user; run the command as the bookie's user") from None
        except TimeoutError:
            raise CommandError(f"the bookie at {self.path} has not answered within {seconds_max:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise CommandError(f"the bookie at {self.path} cannot be asked: {error}") from error
        finally:
            connection.close()
        if answer.status >= 400:
            message = _message_of(content)
            # A bookie that is not ready says why in the same form as a bookie that is.
            if message is not None or answer.status != http.HTTPStatus.SERVICE_UNAVAILABLE:
                raise RefusedError(answer.status, message or answer.reason)
        return content


def _message_of(refusal: bytes) -> str | None:
    try:
        return str(json.loads(refusal)["message"])
    except (ValueError, LookupError, TypeError):
        return None


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, seconds_max: float) -> None:
        super().__init__("localhost", timeout=seconds_max)
        self._path = path

    def connect(self) -> None:
        from octavo.bookie.admin.server import short_address

        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with short_address(self._path) as address:
            self.sock.connect(address)


def find_bookie(name: str, cluster_directory: Path | None) -> AdminClient:
    """The bookie that ``name`` means: the path of its socket or data directory; the name of a bookie of `octavo up` in
    ``cluster_directory``; the instance of a systemd unit; the id of either. Raises :class:`CommandError`."""
    path = Path(name)
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(path.stat().st_mode):
            return AdminClient(path)
    if path.is_dir():
        return AdminClient(path / "admin.sock")
    for bookie in _bookies_of_up(cluster_directory):
        if name == bookie["name"]:
            return AdminClient(Path(bookie["data_dir"]) / "admin.sock")
    settings = UNIT_SETTINGS / f"{name}.toml"
    if "/" not in name and settings.exists():
        from octavo.bookie.config import load_config

        return AdminClient(load_config(settings, {}, {}).admin_socket_path)
    found = bookies_here(cluster_directory).get(name)
    if found is not None:
        return found
    raise CommandError(
        f"no bookie {name} is known on this host; give its data directory, its name in `octavo status`, or the name of "
        "its unit (octavo-bookie@NAME)"
    )


def bookies_here(cluster_directory: Path | None) -> dict[str, AdminClient]:
    """The bookies on this host that can be found, by id: those of `octavo up` in ``cluster_directory``, and those of
    systemd units whose settings this user may read. They need not run, nor belong to one cluster."""
    found: dict[str, AdminClient] = {}
    for bookie in _bookies_of_up(cluster_directory):
        directory = Path(bookie["data_dir"])
        bookie_id = id_in(directory)
        if bookie_id is not None:
            found[bookie_id] = AdminClient(directory / "admin.sock")
    for settings in sorted(UNIT_SETTINGS.glob("*.toml")):
        from octavo.bookie.config import load_config

        with contextlib.suppress(InvalidArgumentError, OSError):
            config = load_config(settings, {}, {})
            bookie_id = config.bookie_id or id_in(config.data_dir)
            if bookie_id is not None:
                found.setdefault(bookie_id, AdminClient(config.admin_socket_path))
    return found


def _bookies_of_up(cluster_directory: Path | None) -> Sequence[Mapping[str, Any]]:
    state = None if cluster_directory is None else read_state(cluster_directory)
    return () if state is None else state.get("bookies", ())


def id_in(directory: Path) -> str | None:
    """The id in the cookie of a data directory; None when it cannot be read."""
    try:
        return str(json.loads((directory / "cookie").read_bytes().splitlines()[0])["bookie_id"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
