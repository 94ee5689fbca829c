"""The public face: every promised name is there, nothing heavy comes with it."""

import inspect
import subprocess
import sys

import pytest
from octavo.protocol import errors
from octavo.protocol.errors import OctavoError
from support.clusters.reading import cluster_of

import octavo

ERRORS = [
    "OctavoError", "LedgerFencedError", "LedgerClosedError", "NoSuchLedgerError", "NoSuchEntryError",
    "LedgerExistsError", "NotEnoughBookiesError", "QuorumLostError", "UnauthorizedError", "DigestMismatchError",
    "EntryTooLargeError", "MetadataConflictError", "MetadataUnavailableError", "LedgerRecoveryError",
    "OctavoTimeoutError", "ClientClosedError", "DuplicateEntryError", "WouldBlock", "InvalidArgumentError",
]  # fmt: skip

MEMBERS = {
    "Client": [
        "create_ledger", "open_ledger", "delete_ledger", "list_ledgers", "ledger_metadata", "bookies", "close",
        "__aenter__", "__aexit__",
    ],
    "LedgerWriter": [
        "id", "metadata", "last_add_confirmed", "last_add_pushed", "length", "add", "add_nowait", "add_many", "flush",
        "force", "close", "closed", "__aenter__", "__aexit__",
    ],
    "LedgerReader": [
        "id", "metadata", "ledger_closed", "last_add_confirmed", "length", "read", "read_unconfirmed", "entries",
        "follow", "refresh_last_add_confirmed", "wait_last_add_confirmed", "close", "__aiter__", "__aenter__",
        "__aexit__",
    ],
    "Entry": ["ledger_id", "entry_id", "payload", "last_add_confirmed", "length"],
    "LedgerMetadata": [
        "ledger_id", "state", "ensemble_size", "write_quorum", "ack_quorum", "fragments", "last_entry_id", "length",
        "digest", "custom_metadata", "created_at",
    ],
    "LedgerState": ["OPEN", "IN_RECOVERY", "CLOSED"],
    "Digest": ["CRC32C", "HMAC_SHA256"],
}  # fmt: skip
"""Object -> its promised attributes and methods."""


@pytest.mark.parametrize("name", ERRORS)
def test_every_promised_error_is_public_and_one_of_ours(name: str) -> None:
    error_class = getattr(octavo, name)
    assert issubclass(error_class, octavo.OctavoError)
    assert isinstance(error_class.retryable, bool)
    assert isinstance(error_class("why").may_have_happened, bool)
    assert name in octavo.__all__


def test_errors_that_are_builtin_ones_too() -> None:
    assert issubclass(octavo.OctavoTimeoutError, TimeoutError)
    assert issubclass(octavo.InvalidArgumentError, ValueError)


@pytest.mark.parametrize("name", MEMBERS)
def test_every_promised_object_has_its_members(name: str) -> None:
    public = getattr(octavo, name)
    assert [member for member in MEMBERS[name] if not hasattr(public, member)] == []


def test_signatures_that_programs_rely_on() -> None:
    create = inspect.signature(octavo.Client.create_ledger).parameters
    assert {name: create[name].default for name in list(create)[1:]} == {
        "ensemble_size": 3,
        "write_quorum": 3,
        "ack_quorum": 2,
        "password": b"",
        "digest": octavo.Digest.CRC32C,
        "private": False,
        "custom_metadata": None,
        "ids": "sequential",
        "sync": "immediate",
        "full_copies": None,
    }
    opening = inspect.signature(octavo.Client.open_ledger).parameters
    assert opening["password"].default == b""
    assert opening["recover"].default is True
    wait = inspect.signature(octavo.LedgerReader.wait_last_add_confirmed).parameters
    assert list(wait)[1:] == ["at_least", "timeout"]


def test_every_public_name_can_be_had_and_is_documented() -> None:
    for name in octavo.__all__:
        assert getattr(octavo, name).__doc__, name
    assert set(octavo.__all__) <= set(dir(octavo))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        octavo.nonsense  # noqa: B018


def test_every_error_is_public() -> None:
    ours = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, OctavoError)}
    assert ours <= set(octavo.__all__)


@pytest.mark.parametrize("name", ["Client", "LedgerWriter", "ExplicitIdWriter", "LedgerReader"])
def test_every_public_member_of_what_programs_use_is_documented(name: str) -> None:
    members = {member: value for member, value in vars(getattr(octavo, name)).items() if not member.startswith("_")}
    assert [member for member, value in members.items() if not getattr(value, "__doc__", None)] == []


async def test_what_programs_use_has_no_other_public_attributes() -> None:
    async with cluster_of(3) as cluster, octavo.connect(cluster.uri) as client:
        writer = await client.create_ledger()
        explicit = await client.create_ledger(ids="explicit")
        reader = await client.open_ledger(writer.id, recover=False)
        await writer.add(b"x")
        for thing in (client, writer, explicit, reader):
            assert [name for name in vars(thing) if not name.startswith("_")] == []


def test_the_package_runs_as_the_command() -> None:
    finished = subprocess.run([sys.executable, "-m", "octavo", "--version"], capture_output=True, text=True, check=True)
    assert octavo.__version__ in finished.stdout


def test_importing_the_face_loads_neither_client_nor_anything_heavy() -> None:
    program = (
        "import sys, octavo\n"
        "heavy = {'aiozk', 'typer', 'rich', 'pyspark', 'structlog', 'sqlite3', 'asyncio', 'octavo.client'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert _output_of(program) == "[]"


def test_using_the_client_loads_no_command_line_and_no_server() -> None:
    program = (
        "import sys, octavo\n"
        "octavo.connect\n"
        "heavy = {'aiozk', 'typer', 'rich', 'pyspark', 'octavo.bookie', 'octavo.cli'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert _output_of(program) == "[]"


def test_help_of_the_command_loads_what_it_prints_and_no_more() -> None:
    program = (
        "import sys, octavo.cli.commands\n"
        "octavo.cli.commands.command_line()\n"
        "heavy = {'aiozk', 'http.client', 'msgpack', 'pydantic', 'pyspark', 'rich', 'sqlite3', 'structlog',\n"
        "    'octavo.bookie', 'octavo.client', 'octavo.metadata', 'octavo.repair'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert _output_of(program) == "[]"


def test_a_bookie_does_not_load_what_it_does_not_use() -> None:
    program = (
        "import sys, octavo.bookie.logs, octavo.bookie.daemon, octavo.cli.bookie.companion\n"
        "unused = {'aiozk', 'http.client', 'pydantic', 'pyspark', 'rich'}\n"
        "print(sorted(unused & set(sys.modules)))\n"
        "import rich.console  # other commands can"
    )
    assert _output_of(program) == "[]"


def test_checking_the_options_of_a_data_source_loads_no_client() -> None:
    """Spark does so in a new process for each table."""
    program = (
        "import sys, octavo.pipeline.datasource\n"
        "unused = {'octavo.client.client', 'octavo.metadata', 'numpy', 'rich', 'sqlite3', 'structlog', 'uvloop'}\n"
        "print(sorted(unused & set(sys.modules)))"
    )
    assert _output_of(program) == "[]"


def _output_of(program: str) -> str:
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return finished.stdout.strip()
