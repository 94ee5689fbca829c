"""``octavo deploy show | install | bookie | host``: the shipped units and settings, and a host prepared for its
bookies."""

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer
from octavo.cli.deploy import host_plan, plan
from octavo.cli.output import print_json, print_line
from octavo.cli.replacing import replace_content
from octavo.cli.session import CommandError, guarded
from octavo.protocol.errors import InvalidArgumentError

app = typer.Typer(name="deploy", help="Install systemd units and prepare a host for bookies.", no_args_is_help=True)

_SYSTEMD_RUNS = Path("/run/systemd/system")
"""Exists exactly while systemd is the host's service manager."""

RootOption = Annotated[
    Path,
    typer.Option(
        "--root",
        metavar="DIR",
        help="Write below this directory, which holds the file system of another host or an image. No program is run"
        " and no owner is set there.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print results as JSON.")]


@app.command()
def show(
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="The file to print. Without it, the files are listed.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print a shipped file, or list them all.

    The files are units, settings with their defaults, alert rules and a dashboard.
    """

    def work() -> int:
        texts = _shipped()
        if file is not None and file not in texts:
            raise CommandError(f"there is no shipped file {file}; there are {', '.join(texts)}")
        if as_json:
            print_json(list(texts) if file is None else {"file": file, "text": texts[file]})
        elif file is None:
            for name in texts:
                print_line(name)
        else:
            sys.stdout.write(texts[file])
        return 0

    raise typer.Exit(guarded(work, show_traceback=False))


@app.command()
def install(
    root: RootOption = Path("/"),
    command: Annotated[
        Path | None,
        typer.Option(
            "--command",
            metavar="PATH",
            help="The `octavo` that the units run. The default is the command that you are running.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Install the systemd units, the users and the directories.

    The command writes units to /etc/systemd/system, and makes the users octavo and octavo-gateway with their
    directories. Files that an earlier version installed are replaced. Run it as root.
    """

    def work() -> int:
        program = command.absolute() if command is not None else _own_command()
        planned = plan.units(_shipped(), PurePosixPath(program))
        done = [_write(root, file) for file in planned]
        if _is_this_host(root):
            _run("systemd-sysusers", plan.DESTINATIONS["octavo.sysusers"])
            _run("systemd-tmpfiles", "--create", plan.DESTINATIONS["octavo.tmpfiles"])
            _reload_units()
        if as_json:
            print_json({"command": str(program), "files": done})
            return 0
        for entry in done:
            print_line(f"{entry['done']:<10} {entry['path']}")
        print_line("next: octavo deploy bookie NAME")
        return 0

    raise typer.Exit(guarded(work, show_traceback=False))


@app.command()
def bookie(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the bookie's unit and of its settings.")],
    root: RootOption = Path("/"),
    as_json: JsonOption = False,
) -> None:
    """Prepare this host for a bookie.

    The bookie's settings are /etc/octavo/NAME.toml, made from the shipped example if they do not exist. The command
    checks them, and makes the bookie's directories. If they lie outside /var/lib/octavo, it also lets the unit write
    there. Run it as root, and again after the directories in the settings have changed.
    """

    def work() -> int:
        plan.check_instance(name)
        done = []
        settings = _below(root, plan.settings_path(name))
        if not settings.exists():
            text = plan.first_settings(_shipped()[plan.SETTINGS_FILE], name)
            done.append(_write_settings(root, plan.settings_path(name), text))
        done += _prepare(root, name, _outside_of(settings))
        if _is_this_host(root):
            _reload_units()
        if as_json:
            print_json({"bookie": name, "settings": str(plan.settings_path(name)), "files": done})
            return 0
        for entry in done:
            print_line(f"{entry['done']:<10} {entry['path']}")
        print_line(f"next: edit {plan.settings_path(name)}, then systemctl enable --now octavo-bookie@{name}")
        return 0

    raise typer.Exit(guarded(work, show_traceback=False))


@app.command()
def host(root: RootOption = Path("/"), as_json: JsonOption = False) -> None:
    """Prepare this host for several bookies.

    The command reads /etc/octavo/host.toml, made from the shipped example if it does not exist, and deals out disks and
    ports: it writes the settings of each bookie, makes its directories, and lets its unit write there. Bookies that
    exist keep their directories and ports; what would move them is refused, and nothing is written then. Run it as
    root, and again after the file has changed.
    """

    def work() -> int:
        path = plan.SETTINGS_DIRECTORY / host_plan.SETTINGS_FILE
        settings = _below(root, path)
        done = []
        if not settings.exists():
            done.append(_write_settings(root, path, _shipped()[host_plan.SETTINGS_FILE]))
        text = _with_remedy(lambda: settings.read_text(encoding="utf-8"), settings)
        planned = host_plan.bookies_of(host_plan.read_host(text, str(path)))
        _check_existing(root, planned)
        outside = {bookie.name: _checked(path, bookie) for bookie in planned}
        for bookie in planned:
            of_bookie = plan.settings_path(bookie.name)
            done.append(_write_settings(root, of_bookie, host_plan.as_toml(bookie.settings, path)))
            done += _prepare(root, bookie.name, outside[bookie.name])
        if (targets := host_plan.metrics_targets(planned)) is not None:
            done.append(_write(root, plan.PlannedFile(plan.SETTINGS_DIRECTORY / "prometheus-targets.json", targets)))
        if _is_this_host(root):
            _reload_units()
        names = [bookie.name for bookie in planned]
        if as_json:
            print_json({"bookies": names, "settings": str(path), "files": done})
            return 0
        for entry in done:
            print_line(f"{entry['done']:<10} {entry['path']}")
        enabled = " ".join(f"octavo-bookie@{name}" for name in names)
        print_line(f"next: edit {path} and run this again, then systemctl enable --now {enabled}")
        return 0

    raise typer.Exit(guarded(work, show_traceback=False))


def _check_existing(root: Path, planned: list[host_plan.PlannedBookie]) -> None:
    """Raises :class:`InvalidArgumentError` if a bookie that exists would change its place, or go."""
    files = sorted(_below(root, plan.SETTINGS_DIRECTORY).glob("*.toml"))
    there = {path.stem: path.read_text(encoding="utf-8") for path in files}
    for bookie in planned:
        plan.check_instance(bookie.name)
        text = there.get(bookie.name)
        if text is not None and not host_plan.is_ours(text):
            raise InvalidArgumentError(
                f"{plan.settings_path(bookie.name)} was not written by this command; choose another name in "
                f"{host_plan.SETTINGS_FILE}, or move the file away"
            )
        if text is not None:
            host_plan.check_kept(bookie.name, tomllib.loads(text), bookie.settings)
    names = {bookie.name for bookie in planned}
    for name, text in there.items():
        if host_plan.is_ours(text) and name not in names:
            raise InvalidArgumentError(
                f"bookie {name} exists, and is not among {', '.join(sorted(names))}: drain and retire it "
                f"(docs/procedures.md), and remove {plan.settings_path(name)}"
            )


def _checked(path: PurePosixPath, bookie: host_plan.PlannedBookie) -> list[PurePosixPath]:
    """The directories of a bookie that its unit alone does not let it write. Raises :class:`InvalidArgumentError` for
    settings that no bookie can have."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{bookie.name}.toml"
            file.write_text(host_plan.as_toml(bookie.settings, path), encoding="utf-8")
            return _outside_of(file)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: bookie {bookie.name}: {error.message}") from error


def _outside_of(settings: Path) -> list[PurePosixPath]:
    """The directories in a bookie's settings that its unit alone does not let it write."""
    from octavo.bookie.config import load_config  # noqa: PLC0415 - the other commands need no bookie's modules

    config = load_config(settings, {}, {})
    metadata = plan.sqlite_directory(config.metadata)
    places = [PurePosixPath(path) for path in config.directories.values()]
    return plan.directories_outside([*places, *([metadata] if metadata is not None else [])])


def _write_settings(root: Path, path: PurePosixPath, text: str) -> dict[str, str]:
    done = _write(root, plan.PlannedFile(path, text), mode=0o640)
    _give_to(root, _below(root, path), user=None)
    return done


def _prepare(root: Path, name: str, outside: list[PurePosixPath]) -> list[dict[str, str]]:
    """Make a bookie's directories and let its unit write there."""
    return [*(_make_directory(root, directory) for directory in outside), *_write_drop_in(root, name, outside)]


def _shipped() -> dict[str, str]:
    """Every shipped file by its path below deploy/, in order."""
    folder = resources.files("octavo.deploy")
    texts: dict[str, str] = {}

    def add(name: str, found: resources.abc.Traversable) -> None:
        if found.is_dir():
            for inner in found.iterdir():
                if inner.name != "__pycache__":
                    add(f"{name}/{inner.name}" if name else inner.name, inner)
        elif not name.endswith(".py"):
            texts[name] = found.read_text(encoding="utf-8")

    add("", folder)
    return dict(sorted(texts.items()))


def _own_command() -> Path:
    """The absolute path of the command that runs, checked to be visible to the units with its interpreter."""
    started = Path(sys.argv[0]).absolute()
    beside = Path(sys.prefix) / "bin" / "octavo"
    program = next((path for path in (started, beside) if path.stem == "octavo" and os.access(path, os.X_OK)), None)
    if program is None:
        raise CommandError("cannot tell the path of the command `octavo`; give --command PATH")
    for needed in (Path(sys.base_prefix), Path(sys.prefix)):
        if (hidden := plan.hidden_below(PurePosixPath(needed.resolve()))) is not None:
            raise CommandError(
                f"the units cannot run {program}: its Python is in {needed}, and they hide {hidden} from bookies. "
                "Install Octavo where every user can read it, for example in /opt/octavo with the system's Python, or "
                "give --command PATH"
            )
    return program


def _is_this_host(root: Path) -> bool:
    return root.resolve() == Path("/")


def _below(root: Path, path: PurePosixPath) -> Path:
    return root / path.relative_to("/")


def _with_remedy[T](act: Callable[[], T], path: Path) -> T:
    try:
        return act()
    except PermissionError as error:
        raise CommandError(f"{path}: {error.strerror}; run the command as root") from error


def _write(root: Path, file: plan.PlannedFile, *, mode: int = 0o644) -> dict[str, str]:
    """Write a file by replacing it; what was done. Directories above it are made."""
    target = _below(root, file.path)

    def write() -> str:
        before = target.read_text(encoding="utf-8") if target.exists() else None
        if before == file.text:
            return "unchanged"
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_content(target, file.text.encode(), mode=mode)
        return "created" if before is None else "replaced"

    return {"path": str(file.path), "done": _with_remedy(write, target)}


def _write_drop_in(root: Path, name: str, outside: list[PurePosixPath]) -> list[dict[str, str]]:
    path = plan.drop_in_path(name)
    target = _below(root, path)
    if outside:
        return [_write(root, plan.PlannedFile(path, plan.drop_in(outside)))]
    if not target.exists():
        return []
    _with_remedy(target.unlink, target)
    with contextlib.suppress(OSError):
        target.parent.rmdir()
    return [{"path": str(path), "done": "removed"}]


def _make_directory(root: Path, directory: PurePosixPath) -> dict[str, str]:
    target = _below(root, directory)

    def make() -> str:
        if target.exists():
            return "unchanged"
        target.mkdir(parents=True, mode=0o750)
        return "created"

    done = _with_remedy(make, target)
    if done == "created" or not any(target.iterdir()):
        _give_to(root, target, user=plan.USER)
    elif _is_this_host(root) and target.owner() != plan.USER:
        raise CommandError(
            f"{target} holds files and belongs to {target.owner()}; a bookie runs as {plan.USER}. If these are the "
            f"bookie's files, run `chown -R {plan.USER}: {target}`"
        )
    return {"path": str(directory), "done": done}


def _give_to(root: Path, path: Path, *, user: str | None) -> None:
    """Give ``path`` to the group of the bookies, and to ``user``; without one, root keeps it."""
    if not _is_this_host(root):
        return
    try:
        entry = pwd.getpwnam(plan.USER)
    except KeyError:
        raise CommandError(f"this host has no user {plan.USER}; run `octavo deploy install` first") from None
    _with_remedy(lambda: os.chown(path, entry.pw_uid if user is not None else -1, entry.pw_gid), path)


def _reload_units() -> None:
    if _SYSTEMD_RUNS.is_dir():
        _run("systemctl", "daemon-reload")


def _run(*arguments: str) -> None:
    if shutil.which(arguments[0]) is None:
        raise CommandError(f"{arguments[0]} is missing; the units need systemd. For a host without it, see --root")
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CommandError(f"`{' '.join(arguments)}` failed: {done.stderr.strip() or done.returncode}")
