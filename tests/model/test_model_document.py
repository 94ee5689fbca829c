"""docs/model.md shows a trace, which is the one that the model finds, and the result of every setting."""

import subprocess
import sys

from model.engine.explorer import explore
from model.engine.world import World
from model.gateway.settings import GATEWAY_CANARIES, GATEWAY_JOBS
from model.ledgers.canaries import CANARIES
from model.ledgers.repair_settings import REPAIR_CANARIES, REPAIR_JOBS
from model.ledgers.settings import JOBS
from model.logs.settings import LOG_CANARIES, LOG_JOBS
from model.published.settings import DEFECTS, PUBLISHED_JOBS
from model.streams.settings import STREAM_CANARIES, STREAM_JOBS
from model.streams.term_books_settings import BOOKS_CANARIES, BOOKS_JOBS
from support.tree import ROOT


def test_trace_in_the_document_is_the_one_that_is_found() -> None:
    canary = next(canary for canary in CANARIES if canary.name == "recovery reads that do not fence")
    violation = explore(World(canary.broken)).violation
    assert f"```\n{violation}\n```" in (ROOT / "docs" / "model.md").read_text(encoding="utf-8")


def test_the_names_that_only_takes_can_be_listed() -> None:
    script = ROOT / "scripts" / "check_model.py"
    done = subprocess.run([sys.executable, script, "--list"], capture_output=True, text=True, check=True)
    listed = [line.split(maxsplit=1) for line in done.stdout.replace(" * ", " ").splitlines()]
    names = [job.name for job in (*JOBS, *REPAIR_JOBS, *STREAM_JOBS, *BOOKS_JOBS)] + [job.name for job in LOG_JOBS]
    names += [job.name for job in PUBLISHED_JOBS] + [job.name for job in GATEWAY_JOBS]
    assert [name for kind, name in listed if kind == "setting"] == names
    canaries = [canary.name for canary in (*CANARIES, *REPAIR_CANARIES, *STREAM_CANARIES, *BOOKS_CANARIES)] + [
        f"log: {canary.name}" for canary in LOG_CANARIES
    ]
    canaries += [f"published: {defect.name}" for defect in DEFECTS]
    canaries += [f"gateway: {canary.name}" for canary in GATEWAY_CANARIES]
    assert [name for kind, name in listed if kind == "canary"] == canaries


def test_the_table_of_results_has_every_setting() -> None:
    document = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")
    table = document.partition("| setting |")[2].partition("\n\n")[0].splitlines()[2:]
    settings = [job.name for job in (*JOBS, *REPAIR_JOBS, *STREAM_JOBS, *BOOKS_JOBS)] + [job.name for job in LOG_JOBS]
    settings += [job.name for job in PUBLISHED_JOBS] + [job.name for job in GATEWAY_JOBS]
    assert [row.split(" | ")[0].removeprefix("| ") for row in table] == settings
