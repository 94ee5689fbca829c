"""franz-go's own tests at a gateway: all that do not skip themselves, but for three.

TestTxnEtl needs transactions, and TestIssueFetchLargerThanBrokerMaxReadBytes a topic whose batches may have 10 MiB: an
entry of a log has at most 4 MiB, so a gateway refuses that setting (rule K1). Test848RegexBrokerResolves wants a
pattern to match the topic in which a broker has its groups: at a gateway no client may read that, so no pattern
matches it.

They come from Go's module proxy and are built with `go`, which must be there: `make soak` runs this module
(tests/left_to_soak.txt).
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands.processes import Up, environment

MODULE = "github.com/twmb/franz-go@v1.22.3"
BUILD_SECONDS = 900
RUN_SECONDS = 1200

LEFT_OUT = "^(TestTxnEtl|TestIssueFetchLargerThanBrokerMaxReadBytes|Test848RegexBrokerResolves)$"

SETTINGS = {"KGO_TEST_RECORDS": "10000", "KGO_TEST_RF": "3", "KGO_LOG_LEVEL": "none"}
"""Fewer records than its authors have, who test brokers on large machines."""


def run(*command: object, folder: Path, seconds: float = BUILD_SECONDS, **settings: str) -> tuple[int, str]:
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, capture_output=True, text=True, timeout=seconds, check=False,
        env=environment(**settings),
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def up(module_folder: Path) -> Iterator[Up]:
    with Up(module_folder / "data", "--kafka", 0) as running:
        yield running.wait_ready()


@pytest.fixture(scope="module")
def program(module_folder: Path) -> Path:
    """The tests of its client, as one program."""
    status, output = run("go", "mod", "download", "-json", MODULE, folder=module_folder)
    assert status == 0, output[-3000:]
    source = module_folder / "source"
    module, _ = json.JSONDecoder().raw_decode(output[output.index("{") :])
    shutil.copytree(module["Dir"], source, copy_function=shutil.copyfile)
    status, output = run("go", "test", "-c", "-o", module_folder / "kgo.test", "./pkg/kgo", folder=source)
    assert status == 0, output[-3000:]
    return module_folder / "kgo.test"


def test_franz_gos_own_tests(up: Up, program: Path) -> None:
    source = program.parent / "source" / "pkg" / "kgo"
    options = ("-test.v", "-test.skip", LEFT_OUT, "-test.timeout", f"{RUN_SECONDS}s")
    _, output = run(program, *options, folder=source, seconds=RUN_SECONDS + 60, KGO_SEEDS=up.kafka, **SETTINGS)
    found = {name: outcome for outcome, name in re.findall(r"^--- (PASS|FAIL|SKIP): (\w+)", output, re.MULTILINE)}
    failed = sorted(name for name, outcome in found.items() if outcome == "FAIL")
    assert not failed, output[-6000:]
    passed = sum(outcome == "PASS" for outcome in found.values())
    assert passed >= 100
    assert found["TestGroupETL"] == "PASS"
