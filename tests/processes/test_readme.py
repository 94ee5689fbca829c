"""What README shows works as it stands there, on a cluster of real processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import WAIT_SECONDS, Up, environment
from support.tree import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str, holding: str) -> str:
    """The one block of code in that language that holds these words."""
    (found,) = (code for code in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if holding in code)
    return str(found)


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command with this environment's ``octavo`` first on the path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(PATH=path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )


def test_the_python_example_writes_and_reads_back_what_it_says(tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(block("python", "octavo.connect"), encoding="utf-8")
    with Up(tmp_path / "octavo-data") as up:
        up.wait_ready()
        done = run(sys.executable, "-W", "error", str(program), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    payloads = [b"hello", b"world", b"!", *(b"%d" % number for number in range(1000))]
    assert done.stdout.splitlines() == [f"{entry_id} {payload!r}" for entry_id, payload in enumerate(payloads)]


def test_the_shell_example_gives_the_same_bytes_back(tmp_path: Path) -> None:
    first, *commands = (line.split(" # ")[0].strip() for line in block("sh", "octavo up").splitlines())
    assert first == "octavo up --bookies 3 &"
    assert [command.split()[1] for command in commands] == ["ledger", "ledger", "bookies", "bench"]
    (tmp_path / "access.log").write_bytes(b"GET /\r\nGET /favicon.ico")
    with Up(tmp_path / "octavo-data", "--bookies", 3) as up:
        up.wait_ready()
        for command in commands:
            short = " --duration 0.5" if "bench" in command else ""
            done = run("bash", "-euo", "pipefail", "-c", command + short, cwd=tmp_path)
            assert done.returncode == 0, (command, done)
            assert done.stdout != "" or "cmp" in command


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_two_commands_at_the_top_are_targets_of_make(target: str) -> None:
    assert f"make {target} " in block("sh", "make demo")
    assert re.search(rf"^{target}:.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
