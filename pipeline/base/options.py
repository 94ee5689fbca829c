"""Parses and checks the options of the data source. Pure.

Spark passes options as strings with case-insensitive names. A wrong option raises an :class:`InvalidArgumentError` that
names it, on the driver, before anything is read or written.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from octavo.client.log.documents.names import check_log_name
from octavo.client.options import ClientOptions
from octavo.pipeline.base.selection import HELP, Selection, parse_selection
from octavo.protocol.entries import Digest
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.ids import ID_MAX
from octavo.protocol.quorums import Quorums
from octavo.security.tls_options import Tls

PASSWORD_VARIABLE_DEFAULT = "OCTAVO_PASSWORD"
"""The environment variable that holds the password unless an option names another or a file."""

TARGET_PARTITION_BYTES_DEFAULT = 128 * 1024 * 1024
"""Payload bytes of one partition, as in Spark's own file sources. A task then runs for about a second."""

LEAD_SECONDS_DEFAULT = 300
"""How long a commit waits for the lead of its log: longer than a leader that has crashed keeps it."""

EARLIEST = "earliest"
LATEST = "latest"

_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DATASET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

_SPARK_OWN = frozenset({"checkpointlocation", "queryname", "path"})
"""Options that Spark adds for itself."""

_CLIENT_PREFIX = "client."


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How to reach the cluster, and where the password is. Never the password itself, because Spark shows options in
    plans, logs and its UI."""

    metadata_uri: str
    password_file: str | None = None
    password_variable: str = PASSWORD_VARIABLE_DEFAULT
    client_options: tuple[tuple[str, int | float], ...] = ()
    """Name -> value of :class:`ClientOptions`."""
    tls: Tls | None = None
    """Files on every machine; None: as the environment of each says."""
    key_file: str | None = None
    """File with the key of a principal, on every machine."""


@dataclass(frozen=True, slots=True)
class Position:
    """A position in each ledger: the same in all ledgers, or one for each named ledger."""

    everywhere: int | None = None
    by_ledger: tuple[tuple[int, int], ...] = ()

    def of(self, ledger_id: int) -> int | None:
        """The position in that ledger; None if none is given."""
        return dict(self.by_ledger).get(ledger_id, self.everywhere)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a read."""

    cluster: ClusterOptions
    selection: Selection
    dataset: str | None
    log: str | None
    """The log to read; None: ledgers."""
    starting_entry: Position
    ending_entry: Position
    starting_position: int | None
    ending_position: int | None
    """Of a log, both inclusive."""
    starting_offsets: str | Position
    """:data:`EARLIEST`, :data:`LATEST`, a position in each ledger (-1: the end, -2: the beginning), or in a log."""
    target_partition_bytes: int
    partitions_min: int
    fail_on_data_loss: bool
    include_source: bool
    include_key: bool
    entries_per_trigger_max: int | None
    bytes_per_trigger_max: int | None


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a write."""

    cluster: ClusterOptions
    dataset: str | None
    """The dataset to publish; None: rows go into a log."""
    log: str | None
    job: str | None
    """The name of a batch job that writes into a log."""
    lead_seconds: int
    """How long a commit waits for the lead of the log."""
    quorums: tuple[int, int, int]
    digest: Digest
    value_column: str
    key_column: str | None
    """None: the column ``key``, if there is one."""
    keys_per_task_max: int


_SECURITY_NAMES = ("tlsCa", "tlsCertificate", "tlsKey", "tlsVerify", "keyFile")
SOURCE_NAMES = (
    *_SECURITY_NAMES,
    "metadata", "passwordFile", "passwordVariable", "ledgers", "dataset", "log", "startingEntry", "endingEntry",
    "startingPosition", "endingPosition", "startingOffsets", "targetPartitionBytes", "minPartitions", "failOnDataLoss",
    "includeSource", "includeKey", "maxEntriesPerTrigger", "maxBytesPerTrigger",
)  # fmt: skip
SINK_NAMES = (
    *_SECURITY_NAMES,
    "metadata", "passwordFile", "passwordVariable", "dataset", "ensembleSize", "writeQuorum", "ackQuorum", "digest",
    "valueColumn", "keyColumn", "maxKeysPerTask", "log", "job", "leadSeconds",
)  # fmt: skip


class _Rules(NamedTuple):
    """Options that are about one kind of source or sink."""

    not_for_logs: tuple[str, ...]
    only_for_logs: tuple[str, ...]


_SOURCE_RULES = _Rules(
    ("ledgers", "dataset", "startingEntry", "endingEntry"), ("startingPosition", "endingPosition", "includeKey")
)
_SINK_RULES = _Rules(("dataset", "keyColumn", "maxKeysPerTask"), ("job", "leadSeconds"))


def parse_source_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of ``spark.read`` and ``spark.readStream``. Raises :class:`InvalidArgumentError`."""
    reader = _Reader(options, SOURCE_NAMES)
    cluster = reader.cluster()
    selection, dataset, log = reader.text("ledgers"), reader.dataset(), reader.log(_SOURCE_RULES)
    if selection is None and dataset is None and log is None:
        raise InvalidArgumentError(
            f"give the option ledgers: {HELP}; or the option dataset: the name of a dataset; or the option log: the "
            "name of a log"
        )
    return SourceOptions(
        cluster=cluster,
        selection=parse_selection(selection if selection is not None else "all"),
        dataset=dataset,
        log=log,
        starting_entry=reader.position("startingEntry", 0),
        ending_entry=reader.position("endingEntry", 0),
        starting_position=reader.optional_integer("startingPosition", 0),
        ending_position=reader.optional_integer("endingPosition", 0),
        starting_offsets=reader.offsets("startingOffsets", of_log=log is not None),
        target_partition_bytes=reader.integer("targetPartitionBytes", TARGET_PARTITION_BYTES_DEFAULT, 1),
        partitions_min=reader.integer("minPartitions", 1, 1, 1_000_000),
        fail_on_data_loss=reader.boolean("failOnDataLoss", default=True),
        include_source=reader.boolean("includeSource", default=False),
        include_key=reader.boolean("includeKey", default=False),
        entries_per_trigger_max=reader.optional_integer("maxEntriesPerTrigger"),
        bytes_per_trigger_max=reader.optional_integer("maxBytesPerTrigger"),
    )


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of ``df.write`` and ``df.writeStream``. Raises :class:`InvalidArgumentError`."""
    reader = _Reader(options, SINK_NAMES)
    cluster = reader.cluster()
    dataset, log, job = reader.dataset(), reader.log(_SINK_RULES), reader.text("job")
    if dataset is None and log is None:
        raise InvalidArgumentError(
            "give the option dataset: the name of the dataset to publish; or the option log: the name of the log that "
            "the rows are added to"
        )
    sizes = reader.integer("ensembleSize", 3, 1), reader.integer("writeQuorum", 3, 1), reader.integer("ackQuorum", 2, 1)
    Quorums(*sizes)
    digest = reader.text("digest") or Digest.CRC32C.value
    if digest not in {known.value for known in Digest}:
        known = ", ".join(known.value for known in Digest)
        raise InvalidArgumentError(f"option digest must be one of {known}, not {digest!r}")
    return SinkOptions(
        cluster=cluster,
        dataset=dataset,
        log=log,
        job=None if job is None else check_job_name(job),
        lead_seconds=reader.integer("leadSeconds", LEAD_SECONDS_DEFAULT, 1, 30 * 24 * 3600),
        quorums=sizes,
        digest=Digest(digest),
        value_column=reader.text("valueColumn") or "value",
        key_column=reader.text("keyColumn"),
        keys_per_task_max=reader.integer("maxKeysPerTask", 64, 1, 10_000),
    )


def check_dataset_name(name: str) -> str:
    """The name, if it is valid for a dataset. Raises :class:`InvalidArgumentError`."""
    if _DATASET_NAME.fullmatch(name) is None:
        raise InvalidArgumentError(
            f"{name!r} is not a valid name of a dataset: it must have 1 to 128 letters, digits and ._- and must begin "
            "with a letter or digit"
        )
    return name


def check_job_name(name: str) -> str:
    """The name, if it is valid for a job. Raises :class:`InvalidArgumentError`."""
    if _JOB_NAME.fullmatch(name) is None:
        raise InvalidArgumentError(
            f"{name!r} is not a valid name of a job: it must have 1 to 100 letters, digits and ._- and must begin with "
            "a letter or digit"
        )
    return name


class _Reader:
    def __init__(self, options: Mapping[str, str], names: Iterable[str]) -> None:
        known = {name.lower(): name for name in names}
        self._values: dict[str, str] = {}
        self._client: dict[str, str] = {}
        for key, value in options.items():
            name = key.lower()
            if name.startswith(_CLIENT_PREFIX):
                self._client[name.removeprefix(_CLIENT_PREFIX)] = value
            elif name.replace("_", "") in known:
                self._values[known[name.replace("_", "")]] = value
            elif name == "password":
                # The message does not repeat the password.
                raise InvalidArgumentError(
                    "there is no option password, because Spark shows options in plans and logs: give passwordFile, a "
                    "file on every machine, or passwordVariable, an environment variable (default "
                    f"{PASSWORD_VARIABLE_DEFAULT})"
                )
            elif name not in _SPARK_OWN:
                raise InvalidArgumentError(
                    f"unknown option {key!r}; the options are {', '.join(sorted(known.values()))} and {_CLIENT_PREFIX}*"
                )

    def cluster(self) -> ClusterOptions:
        uri = self.text("metadata")
        if uri is None:
            raise InvalidArgumentError("give the option metadata: the URI of the cluster's metadata store")
        return ClusterOptions(
            metadata_uri=uri,
            password_file=self.text("passwordFile"),
            password_variable=self.text("passwordVariable") or PASSWORD_VARIABLE_DEFAULT,
            client_options=self._client_options(),
            tls=self._tls(),
            key_file=self.text("keyFile"),
        )

    def _tls(self) -> Tls | None:
        given = {name: self.text(f"tls{name.capitalize()}") for name in ("ca", "certificate", "key", "verify")}
        named = {name: value for name, value in given.items() if value}
        return Tls(**named) if named else None  # type: ignore[arg-type]

    def _client_options(self) -> tuple[tuple[str, int | float], ...]:
        known = {field.name: field.type for field in fields(ClientOptions)}
        parsed: dict[str, int | float] = {}
        for name, text in sorted(self._client.items()):
            number = int if known.get(name) is int else float
            try:
                parsed[name] = number(text)
            except ValueError:
                raise InvalidArgumentError(f"option {_CLIENT_PREFIX}{name}: {text!r} is not a number") from None
        ClientOptions.from_keywords(parsed)
        return tuple(parsed.items())

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        return None if value is None else value.strip()

    def dataset(self) -> str | None:
        name = self.text("dataset")
        return None if name is None else check_dataset_name(name)

    def log(self, rules: _Rules) -> str | None:
        """The name of the log; options that are about the other kind are refused."""
        name = self.text("log")
        if name is not None:
            check_log_name(name)
        others = rules.not_for_logs if name is not None else rules.only_for_logs
        for other in others:
            if other in self._values:
                raise InvalidArgumentError(
                    f"option {other} cannot be combined with log"
                    if name is not None
                    else f"option {other} is for logs: give the option log, too"
                )
        return name

    def optional_integer(self, name: str, low: int = 1) -> int | None:
        return None if name not in self._values else self.integer(name, 0, low)

    def integer(self, name: str, default: int, low: int, high: int = ID_MAX) -> int:
        text = self.text(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdecimal() or not low <= int(text) <= high:
            raise InvalidArgumentError(f"option {name} must be an integer from {low} to {high}, not {text!r}")
        return int(text)

    def boolean(self, name: str, *, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in {"true", "false"}:
            raise InvalidArgumentError(f"option {name} must be true or false, not {text!r}")
        return text.lower() == "true"

    def position(self, name: str, low: int) -> Position:
        text = self.text(name)
        if text is None:
            return Position()
        try:
            value: Any = json.loads(text)
        except ValueError:
            value = None
        if _is_id(value, low):
            return Position(value)
        if isinstance(value, dict) and all(key.isdecimal() and _is_id(at, low) for key, at in value.items()):
            return Position(None, tuple((int(key), at) for key, at in value.items()))
        raise InvalidArgumentError(
            f'option {name} must be an entry id, or one per ledger as JSON ({{"3": 100}}), not {text!r}'
        )

    def offsets(self, name: str, *, of_log: bool) -> str | Position:
        text = self.text(name) or EARLIEST
        if text.lower() in {EARLIEST, LATEST}:
            return text.lower()
        if of_log:
            if not text.isascii() or not text.isdecimal() or int(text) > ID_MAX:
                raise InvalidArgumentError(
                    f"option {name} of a log must be earliest, latest or a position, not {text!r}"
                )
            return Position(int(text))
        position = self.position(name, -2)
        if position.everywhere is not None:
            raise InvalidArgumentError(f'option {name} must be earliest, latest, or JSON ({{"3": 100}}), not {text!r}')
        return position


def _is_id(value: object, low: int) -> bool:
    return type(value) is int and low <= value <= ID_MAX
