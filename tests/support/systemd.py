"""A real systemd as process 1 of namespaces of its own: units start, stop and fail as on a host.

The machine sees this host's files through an overlay whose changes are in memory and vanish with it. It has its own
network, processes and control groups. The kernel is shared, so units that would change it (sysctl, modules, binfmt,
udev) are masked. Needs root with CAP_SYS_ADMIN, systemd and util-linux, which .ci/run installs.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from support.waiting import WAIT_SECONDS, wait_until

MASKED = (
    "systemd-sysctl.service systemd-modules-load.service systemd-binfmt.service proc-sys-fs-binfmt_misc.automount "
    "systemd-udevd.service systemd-udev-trigger.service systemd-udevd-kernel.socket systemd-udevd-control.socket "
    "systemd-logind.service systemd-networkd.service systemd-resolved.service systemd-timesyncd.service "
    "systemd-remount-fs.service systemd-random-seed.service systemd-update-utmp.service dev-hugepages.mount "
    "dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount "
    "sys-fs-fuse-connections.mount getty.target console-getty.service"
)

BOOT = f"""
set -eu
top=$1; shift
mount --make-rprivate /
mount -t tmpfs -o size=3g,mode=755 tmpfs "$top"
root=$top/root
mkdir -p "$top/upper" "$top/work" "$root"
mount -t overlay overlay -o lowerdir=/,upperdir="$top/upper",workdir="$top/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
while [ $# -gt 0 ]; do mkdir -p "$root$2"; mount --bind "$1" "$root$2"; shift 2; done
mkdir -p "$root/etc/systemd/system"
rm -rf "$root"/etc/systemd/system/*.wants
for unit in {MASKED}; do ln -sf /dev/null "$root/etc/systemd/system/$unit"; done
printf '[Unit]\\nRequires=basic.target\\nAfter=basic.target\\n' > "$root/etc/systemd/system/test-machine.target"
cd "$root"
mkdir -p outside
pivot_root . outside
umount -l /outside
export container=test-machine
exec /lib/systemd/systemd --unit=test-machine.target --log-target=null </dev/null >/dev/null 2>&1
"""
"""A shell's program inside the new namespaces: `TOP [SOURCE TARGET]...`. systemd needs pivot_root: below a chroot
`PrivateUsers=` fails."""


class Machine:
    """A booted machine. Leaving its block ends every process of it."""

    def __init__(self, folder: Path, mounts: Mapping[Path, str]) -> None:
        """``mounts`` puts directories of this host at paths of the machine. ``folder`` must be empty."""
        assert os.geteuid() == 0, "a systemd of its own needs root: run the tests as root"
        for tool in ("unshare", "nsenter", "systemctl", "systemd-analyze"):
            assert shutil.which(tool), f"{tool} is missing: apt-get install systemd util-linux"
        self._group = _cgroup_root() / f"octavo-test-{os.getpid()}-{folder.name}"
        self._group.mkdir()
        pairs = [str(part) for pair in mounts.items() for part in pair]
        namespaces = ["--pid", "--fork", "--kill-child", "--mount", "--uts", "--ipc", "--net", "--cgroup"]
        enter = f"echo $$ > '{self._group}/cgroup.procs'; exec \"$@\""
        inside = ["unshare", *namespaces, "bash", "-c", BOOT, "boot", str(folder), *pairs]
        self._log = folder.with_suffix(".boot").open("wb")
        self._process = subprocess.Popen(
            ["bash", "-c", enter, "enter", *inside], stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )
        self._first = 0

    def __enter__(self) -> Self:
        try:
            self._wait_booted()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self._first:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._first, signal.SIGKILL)  # the end of process 1 ends every process of its namespace
        else:
            self._process.kill()
        self._process.wait(WAIT_SECONDS)
        self._log.close()
        for group in [*_groups_below(self._group), self._group]:
            _remove_group(group)

    def _wait_booted(self) -> None:
        def has_booted() -> bool:
            assert self._process.poll() is None, f"the machine did not boot: {Path(self._log.name).read_text()}"
            self._first = self._first or self._find_systemd()
            if not self._first:
                return False
            return self.run("systemctl", "is-system-running", check=False).strip() in {"running", "degraded"}

        wait_until(has_booted, "the machine to boot")

    def _find_systemd(self) -> int:
        """The machine's process 1 once it is systemd, otherwise 0."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for child in children:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                    return int(child)
        return 0

    @property
    def process_1(self) -> int:
        """Its systemd, as a process of this host."""
        return self._first

    def run(self, *arguments: object, check: bool = True, stdin: str = "", seconds_max: float = WAIT_SECONDS) -> str:
        """Run a command as the machine's root; its output. With ``check`` it must succeed."""
        enter = ["nsenter", "--target", str(self._first), "--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup"]
        done = subprocess.run(
            [*enter, "--root", "--wdns=/", *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "SYSTEMD_PAGER": ""},
            timeout=seconds_max,
            check=False,
        )
        assert not check or done.returncode == 0, f"{arguments}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def start(self, unit: str) -> None:
        """Start a unit, and check that it is active."""
        self.run("systemctl", "start", unit, check=False)
        assert self.property(unit, "ActiveState") == "active", f"{unit} did not start:\n{self.log(unit)}"

    def write(self, path: str, text: str) -> None:
        """Write a file of the machine; directories above it are made."""
        self.run("bash", "-c", 'mkdir -p "${1%/*}" && cat > "$1"', "write", path, stdin=text)

    def property(self, unit: str, name: str) -> str:
        """A property of a unit, as `systemctl show` gives it."""
        return self.run("systemctl", "show", "--value", "--property", name, unit).strip()

    def wait_for(self, unit: str, name: str, *values: str) -> str:
        """Wait until a property of a unit has one of these values."""
        value = ""

        def has_value() -> bool:
            nonlocal value
            value = self.property(unit, name)
            return value in values

        try:
            wait_until(has_value, f"{name} of {unit} to be one of {values}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {value!r}:\n{self.log(unit)}") from error
        return value

    def wait_for_log(self, unit: str, text: str) -> None:
        """Wait until the unit has logged something with ``text`` in it."""
        wait_until(lambda: text in self.log(unit), f"{unit} to log {text!r}")

    def log(self, unit: str) -> str:
        """What the unit has logged."""
        return self.run("journalctl", "--no-pager", "--output=cat", "--unit", unit, check=False)


def _cgroup_root() -> Path:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            return Path(before.split()[4])
    raise AssertionError("no cgroup2 hierarchy is mounted; systemd needs one")


def _groups_below(group: Path) -> Iterator[Path]:
    """The control groups below ``group``, innermost first."""
    for folder, _, _ in os.walk(group, topdown=False):
        if Path(folder) != group:
            yield Path(folder)


def _remove_group(group: Path) -> None:
    """Remove a control group once its last process has been reaped."""

    def is_gone() -> bool:
        try:
            group.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    wait_until(is_gone, f"{group} to become empty")
