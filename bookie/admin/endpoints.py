"""The requests that a bookie answers over HTTP: the table of endpoints, and what each of them does.

The table is the only list: requests are checked against it, and ``/openapi.json`` and ``docs/admin-api.md`` are made
from it. Endpoints that change something, or that show the inside of the process, are *guarded*: they are answered on
the socket of the file system, whose permissions say who may use it, and over TLS to principals with the role admin.
Over TCP without TLS, where clients are not authenticated, they are refused.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from octavo.bookie.admin.administered import ReadyBookie, Subject
from octavo.bookie.admin.collect import samples, state_of
from octavo.bookie.admin.fields import INTEGER_MAX, Field
from octavo.bookie.admin.http_messages import JSON, HttpAnswer, HttpError, json_answer
from octavo.bookie.admin.introspection import profile, stacks
from octavo.bookie.admin.jobs import Job, JobRunningError, Jobs
from octavo.bookie.admin.ledger_view import LEDGERS_PER_PAGE_MAX, STATES, Sight, as_seen, bookie_view, list_page, show
from octavo.bookie.admin.process import ProcessStatistics
from octavo.bookie.admin.schemas import (
    BOOKIE,
    BOOKIES,
    CLUSTER,
    CONNECTIONS,
    HEALTH,
    JOB,
    JOB_STARTED,
    JOBS,
    LEDGER,
    LEDGERS,
    LOG_LEVEL,
    PAUSE,
    PROFILE,
    READ_ONLY,
    READY,
    STACKS,
)
from octavo.metadata.connect import without_password
from octavo.metrics.exposition import CONTENT_TYPE, expose
from octavo.protocol.errors import NoSuchLedgerError
from octavo.protocol.ids import ID_MAX, LedgerId
from octavo.protocol.light_dataclass import dataclass

PAUSE_SECONDS_MAX = 24 * 3600
LOG_LEVEL_SECONDS_MAX = 24 * 3600
LOG_LEVEL_SECONDS = 600.0
"""How long a changed log level holds unless the operator says otherwise: a forgotten debug level fills disks."""
PROFILE_SECONDS_MAX = 60
REASON_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Administration:
    """The parts of the bookie that the endpoints work with."""

    subject: Subject
    process: ProcessStatistics
    jobs: Jobs
    save_read_only: Callable[[str | None], Awaitable[None]]
    """Keeps the operator's switch over restarts. Raises OSError."""
    set_log_level: Callable[[str, float], None]
    """Changes the level of the log for a number of seconds."""
    log_level: Callable[[], str]
    """The level in force."""
    describe: Callable[[], Mapping[str, Any]]
    """The OpenAPI document."""

    @property
    def ready(self) -> ReadyBookie:
        """The bookie. Raises :class:`HttpError` while it starts."""
        if self.subject.ready is None:
            raise HttpError(503, "Starting", "the bookie is starting", retryable=True)
        return self.subject.ready


class Call(NamedTuple):
    """A request that fits its endpoint."""

    admin: Administration
    values: Mapping[str, Any]
    """Parameters and fields of the body by name; those that are not required and were not given are missing."""
    sight: Sight = Sight.NONE
    """How much of ledgers the client may see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One row of the table."""

    method: str
    path: str
    """``{name}`` stands for a path parameter."""
    name: str
    text: str
    """For people: one sentence."""
    handle: Callable[[Call], Awaitable[HttpAnswer]]
    answer: Mapping[str, Any] | None
    """The JSON schema of the answer; None: it is not JSON."""
    status: int = 200
    content_type: str = JSON
    in_path: tuple[Field, ...] = ()
    in_query: tuple[Field, ...] = ()
    in_body: tuple[Field, ...] | None = None
    """None: no body is taken."""
    guarded: bool = False
    errors: tuple[int, ...] = ()
    """Statuses of refusals, besides those that every endpoint can give."""


# --- observing ---------------------------------------------------------------------------------------------------


async def _healthz(call: Call) -> HttpAnswer:
    failure = call.admin.subject.failure()
    reasons = [] if failure is None else [f"a write or sync has failed: {failure}"]
    return json_answer({"healthy": not reasons, "reasons": reasons}, 503 if reasons else 200)


async def _readyz(call: Call) -> HttpAnswer:
    reasons = call.admin.subject.reasons_not_ready()
    return json_answer({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)


async def _metrics(call: Call) -> HttpAnswer:
    return HttpAnswer(200, expose(samples(call.admin.subject, call.admin.process)), CONTENT_TYPE)


async def _openapi(call: Call) -> HttpAnswer:
    return json_answer(call.admin.describe())


async def _bookie(call: Call) -> HttpAnswer:
    admin = call.admin
    ready = admin.ready
    service, upkeep = ready.service, ready.upkeep
    facts = await service.info()
    facts.pop("state")
    disks = [
        {
            "role": role,
            "path": str(path),
            "free_bytes": space.free_bytes,
            "total_bytes": space.total_bytes,
            "short_of_space": path in upkeep.disks.short,
        }
        for role, path in ready.directories.items()
        if (space := upkeep.spaces.get(path)) is not None
    ]
    value = {
        "bookie_id": service.identity.bookie_id,
        "cluster_id": service.identity.cluster_id,
        "state": state_of(admin.subject),
        "read_only": {"operator": service.operator_read_only, "disks": service.disks_read_only},
        "registered": ready.registered(),
        "metadata_up": ready.store.answers,
        "compaction_paused_seconds": round(upkeep.compaction_paused_seconds, 3),
        "log_level": admin.log_level(),
        "disks": disks,
        "facts": facts,
        "settings": dict(admin.subject.settings),
    }
    return json_answer(value)


async def _connections(call: Call) -> HttpAnswer:
    items = [
        {
            "peer": connection.peer,
            "principal": connection.principal,
            "tls": connection.uses_tls,
            "outstanding": connection.outstanding,
            "long_polls": connection.long_polls,
            "unsent_bytes": connection.unsent_bytes,
        }
        for connection in list(call.admin.ready.service.connections)
    ]
    return json_answer({"items": items})


async def _cluster(call: Call) -> HttpAnswer:
    store = call.admin.ready.store
    states = [bookie.state.value for bookie in await store.list_known_bookies()]
    value = {
        "cluster_id": await store.cluster_id(),
        "metadata": without_password(store.uri),
        "bookies": {state: states.count(state) for state in ("writable", "read-only", "unavailable")},
    }
    return json_answer(value)


async def _bookies(call: Call) -> HttpAnswer:
    known = await call.admin.ready.store.list_known_bookies()
    return json_answer({"items": [bookie_view(bookie) for bookie in known]})


async def _ledgers(call: Call) -> HttpAnswer:
    values = call.values
    page = await list_page(
        call.admin.ready.store,
        after=values.get("after"),
        limit=values.get("limit", 100),
        state=values.get("state"),
        bookie=values.get("bookie"),
    )
    return json_answer({"items": [as_seen(one, call.sight) for one in page.ledgers], "next": page.after})


async def _ledger(call: Call) -> HttpAnswer:
    ledger_id = call.values["ledger_id"]
    try:
        return json_answer(as_seen(await show(call.admin.ready.store, LedgerId(ledger_id)), call.sight))
    except NoSuchLedgerError as error:
        raise HttpError(404, "NoSuchLedger", error.message) from error


# --- changing ----------------------------------------------------------------------------------------------------


async def _read_only(call: Call) -> HttpAnswer:
    ready = call.admin.ready
    wanted: bool = call.values["read_only"]
    reason = call.values.get("reason", "an operator wanted it") if wanted else None
    try:
        # On disk first: a switch that is announced and forgotten at a restart would surprise the operator.
        await call.admin.save_read_only(reason)
    except OSError as error:
        raise HttpError(
            503, "Storage", f"the switch cannot be kept over restarts, so nothing was changed: {error}", retryable=True
        ) from error
    await ready.switch_read_only(reason)
    service = ready.service
    return json_answer(
        {"read_only": service.read_only, "operator": service.operator_read_only, "disks": service.disks_read_only}
    )


def _job(call: Call, kind: str, work: Callable[[], Awaitable[Mapping[str, Any]]]) -> HttpAnswer:
    try:
        job = call.admin.jobs.start(kind, work)
    except JobRunningError as error:
        raise HttpError(409, "Conflict", f"job {error.job_id} ({kind}) is still running", retryable=True) from error
    return json_answer({"job": job.job_id}, 202)


async def _garbage(call: Call) -> HttpAnswer:
    upkeep = call.admin.ready.upkeep

    async def work() -> Mapping[str, Any]:
        return (await upkeep.collect_garbage())._asdict()

    return _job(call, "garbage", work)


async def _compaction(call: Call) -> HttpAnswer:
    upkeep, major = call.admin.ready.upkeep, call.values["level"] == "major"
    paused = upkeep.compaction_paused_seconds
    if paused:
        raise HttpError(
            409, "Paused", f'compaction is paused for {paused:.0f} more seconds; end the pause with {{"seconds": 0}}'
        )

    async def work() -> Mapping[str, Any]:
        return (await upkeep.compact(major=major))._asdict()

    return _job(call, "compaction", work)


async def _pause(call: Call) -> HttpAnswer:
    upkeep = call.admin.ready.upkeep
    upkeep.pause_compaction(call.values["seconds"])
    return json_answer({"paused_seconds": round(upkeep.compaction_paused_seconds, 3)})


async def _scrub(call: Call) -> HttpAnswer:
    upkeep, rate = call.admin.ready.upkeep, call.values.get("bytes_per_second")

    async def work() -> Mapping[str, Any]:
        return (await upkeep.scrub(rate))._asdict()

    return _job(call, "scrub", work)


async def _checkpoint(call: Call) -> HttpAnswer:
    upkeep = call.admin.ready.upkeep

    async def work() -> Mapping[str, Any]:
        await upkeep.checkpoint()
        return {}

    return _job(call, "checkpoint", work)


async def _log_level(call: Call) -> HttpAnswer:
    level, seconds = call.values["level"], call.values.get("seconds", LOG_LEVEL_SECONDS)
    call.admin.set_log_level(level, seconds)
    return json_answer({"level": call.admin.log_level(), "seconds": seconds})


# --- jobs --------------------------------------------------------------------------------------------------------


async def _jobs(call: Call) -> HttpAnswer:
    now = asyncio.get_running_loop().time()
    return json_answer({"items": [job.as_json(now) for job in call.admin.jobs.all()]})


async def _show_job(call: Call) -> HttpAnswer:
    return json_answer(_find_job(call).as_json(asyncio.get_running_loop().time()))


async def _cancel_job(call: Call) -> HttpAnswer:
    job = _find_job(call)
    job.task.cancel()
    return json_answer({"job": job.job_id}, 202)


def _find_job(call: Call) -> Job:
    job_id = call.values["job"]
    job = call.admin.jobs.get(job_id)
    if job is None:
        raise HttpError(404, "NoSuchJob", f"there is no job {job_id}; it may have been forgotten")
    return job


# --- the inside of the process -----------------------------------------------------------------------------------


async def _stacks(_call: Call) -> HttpAnswer:
    return json_answer(stacks())


async def _profile(call: Call) -> HttpAnswer:
    profiling = call.admin.process.profiling
    if profiling.locked():
        raise HttpError(409, "Conflict", "another profile is being taken", retryable=True)
    async with profiling:
        return json_answer(await profile(call.values.get("seconds", 5)))


# --- the table ---------------------------------------------------------------------------------------------------

_JOB_ID = Field(name="job", kind="integer", text="Number of the job.", required=True, low=1, high=INTEGER_MAX)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET", path="/healthz", name="healthz", handle=_healthz, answer=HEALTH, errors=(503,),
        text="Whether the process works: its event loop answers, and no write or sync has failed.",
    ),
    Endpoint(
        method="GET", path="/readyz", name="readyz", handle=_readyz, answer=READY, errors=(503,),
        text="Whether clients can use the bookie: it serves, is registered and is not stopping. A read-only bookie is"
        " ready.",
    ),
    Endpoint(
        method="GET", path="/metrics", name="metrics", handle=_metrics, answer=None, content_type=CONTENT_TYPE,
        text="Every metric in Prometheus' text format.",
    ),
    Endpoint(
        method="GET", path="/openapi.json", name="openapi", handle=_openapi, answer={"type": "object"},
        text="This description.",
    ),
    Endpoint(
        method="GET", path="/api/v1/bookie", name="showBookie", handle=_bookie, answer=BOOKIE, errors=(503,),
        text="State, disks, load and settings of the bookie.",
    ),
    Endpoint(
        method="GET", path="/api/v1/connections", name="listConnections", handle=_connections, answer=CONNECTIONS,
        errors=(503,), text="The connections of clients, in the order in which they came.",
    ),
    Endpoint(
        method="GET", path="/api/v1/cluster", name="showCluster", handle=_cluster, answer=CLUSTER, errors=(503,),
        text="The id of the cluster and the number of its bookies by state.",
    ),
    Endpoint(
        method="GET", path="/api/v1/bookies", name="listBookies", handle=_bookies, answer=BOOKIES, errors=(503,),
        text="The bookies that the cluster knows.",
    ),
    Endpoint(
        method="GET", path="/api/v1/ledgers", name="listLedgers", handle=_ledgers, answer=LEDGERS, errors=(503,),
        in_query=(
            Field(name="after", kind="integer", text="Only ledgers with higher ids.", low=0, high=ID_MAX),
            Field(name="limit", kind="integer", text="Most ledgers of one answer.", low=1, high=LEDGERS_PER_PAGE_MAX),
            Field(name="state", kind="string", text="Only ledgers in this state.", choices=STATES),
            Field(name="bookie", kind="string", text="Only ledgers whose metadata name this bookie.", length_max=256),
        ),
        text="The ledgers in the order of their ids. Pass `next` as `after` to read the next page; it is null at the"
        " end. A page may be shorter than the limit. To clients that may only observe, `withheld` is true and what"
        " tells which entries there are is null; where the bookie requires no authentication, only of private ledgers.",
    ),
    Endpoint(
        method="GET", path="/api/v1/ledgers/{ledger_id}", name="showLedger", handle=_ledger, answer=LEDGER,
        errors=(404, 503), text="The metadata of a ledger. Withheld as in the list of ledgers.",
        in_path=(
            Field(name="ledger_id", kind="integer", text="Id of the ledger.", required=True, low=0, high=ID_MAX),
        ),
    ),
    Endpoint(
        method="POST", path="/api/v1/bookie/read-only", name="switchReadOnly", handle=_read_only, answer=READ_ONLY,
        guarded=True, errors=(503,),
        in_body=(
            Field(name="read_only", kind="boolean", text="Whether the operator wants it read-only.", required=True),
            Field(
                name="reason", kind="string", text="Shown with the bookie's state.", length_max=REASON_CHARACTERS_MAX
            ),
        ),
        text="Make the bookie read-only, or take that back. Kept over restarts; free disk space never undoes it.",
    ),
    Endpoint(
        method="POST", path="/api/v1/bookie/garbage", name="collectGarbage", handle=_garbage, answer=JOB_STARTED,
        status=202, guarded=True, in_body=(), errors=(409, 503),
        text="Collect deleted ledgers and truncated entries now.",
    ),
    Endpoint(
        method="POST", path="/api/v1/bookie/compaction", name="compact", handle=_compaction, answer=JOB_STARTED,
        status=202, guarded=True, errors=(409, 503),
        in_body=(
            Field(
                name="level", kind="string", text="Which threshold applies.", required=True, choices=("minor", "major")
            ),
        ),
        text="Compact entry logs now.",
    ),
    Endpoint(
        method="POST", path="/api/v1/bookie/compaction/pause", name="pauseCompaction", handle=_pause, answer=PAUSE,
        guarded=True, errors=(503,),
        in_body=(
            Field(
                name="seconds", kind="number", text="From now on; 0 ends the pause.", required=True, low=0,
                high=PAUSE_SECONDS_MAX,
            ),
        ),
        text="Pause compaction for some time. A disk that is short of space ends the pause.",
    ),
    Endpoint(
        method="POST", path="/api/v1/bookie/scrub", name="scrub", handle=_scrub, answer=JOB_STARTED,
        status=202, guarded=True, errors=(409, 503),
        in_body=(
            Field(
                name="bytes_per_second", kind="integer", text="Rate; the configured one by default.", low=1 << 16,
                high=1 << 40,
            ),
        ),
        text="Verify everything stored now.",
    ),
    Endpoint(
        method="POST", path="/api/v1/bookie/checkpoint", name="checkpoint", handle=_checkpoint, answer=JOB_STARTED,
        status=202, guarded=True, in_body=(), errors=(409, 503), text="Take a checkpoint now.",
    ),
    Endpoint(
        method="POST", path="/api/v1/bookie/log-level", name="setLogLevel", handle=_log_level, answer=LOG_LEVEL,
        guarded=True,
        in_body=(
            Field(
                name="level", kind="string", text="Messages of this level and above are logged.", required=True,
                choices=("debug", "info", "warning", "error"),
            ),
            Field(
                name="seconds", kind="number", text="Then the configured level returns; 600 by default.", low=1,
                high=LOG_LEVEL_SECONDS_MAX,
            ),
        ),
        text="Change the level of the log for some time.",
    ),
    Endpoint(
        method="GET", path="/api/v1/jobs", name="listJobs", handle=_jobs, answer=JOBS,
        text="The jobs of this run of the bookie, oldest first; the last 100 that are over.",
    ),
    Endpoint(
        method="GET", path="/api/v1/jobs/{job}", name="showJob", handle=_show_job, answer=JOB, errors=(404,),
        in_path=(_JOB_ID,), text="State and result of a job.",
    ),
    Endpoint(
        method="DELETE", path="/api/v1/jobs/{job}", name="cancelJob", handle=_cancel_job, answer=JOB_STARTED,
        status=202, guarded=True, errors=(404,), in_path=(_JOB_ID,),
        text="Cancel a job. What it has done stays done.",
    ),
    Endpoint(
        method="GET", path="/api/v1/stacks", name="showStacks", handle=_stacks, answer=STACKS, guarded=True,
        text="Where every task and thread of the process stands.",
    ),
    Endpoint(
        method="GET", path="/api/v1/profile", name="takeProfile", handle=_profile, answer=PROFILE, guarded=True,
        errors=(409,),
        in_query=(
            Field(name="seconds", kind="number", text="5 by default.", low=1, high=PROFILE_SECONDS_MAX),
        ),
        text="Sample the event loop's thread for some seconds: where it spends its time.",
    ),
)  # fmt: skip
"""Every endpoint."""
