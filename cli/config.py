"""``octavo config check``: validates a file of a bookie's settings without starting the bookie."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo.cli.output import print_json, print_line
from octavo.cli.session import CommandError, guarded

if TYPE_CHECKING:
    from octavo.bookie.config import BookieConfig

app = typer.Typer(name="config", help="Check settings of bookies.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Check settings of bookies."""


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of settings in TOML.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print results as JSON.")] = False,
) -> None:
    """Check a file of settings without starting a bookie.

    The command prints every setting that differs from its default. Environment variables count as they do for a bookie.
    An invalid file gives exit status 2, settings that contradict each other exit status 1.
    """

    def work() -> int:
        from octavo.bookie.config import load_config  # noqa: PLC0415 - the other commands need no bookie's modules

        config = load_config(file, os.environ, {})
        if contradictions := contradictions_in(config):
            raise CommandError(f"{file}: {'; '.join(contradictions)}")
        changed = changed_settings(config)
        if as_json:
            print_json({"file": str(file), "valid": True, "settings": changed})
            return 0
        for name, value in changed.items():
            print_line(f"{name} = {value!r}")
        print_line(f"{file} is valid")
        return 0

    raise typer.Exit(guarded(work, show_traceback=False))


def changed_settings(config: "BookieConfig") -> dict[str, Any]:
    """The settings that differ from their defaults, as JSON; secrets in URIs are left out."""
    from dataclasses import fields  # noqa: PLC0415

    from octavo.cli.redaction import redacted_uri  # noqa: PLC0415

    changed: dict[str, Any] = {}
    for setting in fields(config):
        value = getattr(config, setting.name)
        if value != setting.default:
            shown = [str(item) for item in value] if isinstance(value, tuple) else value
            changed[setting.name] = str(shown) if isinstance(shown, Path) else shown
    if "metadata" in changed:
        changed["metadata"] = redacted_uri(config.metadata)
    return changed


def contradictions_in(config: "BookieConfig") -> list[str]:
    """Combinations that cannot be meant, although every setting by itself is valid."""
    found = []
    if not config.disk_read_only_bytes <= config.disk_writable_bytes <= config.disk_warn_bytes:
        found.append("disk_read_only_bytes, disk_writable_bytes and disk_warn_bytes must not decrease in this order")
    room = 2 * config.cache_bytes + 2 * config.journal_segment_bytes
    if config.disk_read_only_bytes < room:
        found.append(
            f"disk_read_only_bytes must leave room for two write caches and two journal segments, {room} bytes"
        )
    if config.compaction_minor_share > config.compaction_major_share:
        found.append("compaction_minor_share is above compaction_major_share, so major compactions would do less")
    if config.checkpoint_journal_bytes < config.journal_segment_bytes:
        found.append("checkpoint_journal_bytes is smaller than one journal segment (journal_segment_bytes)")
    places = [path.absolute() for path in config.directories.values()]
    if len(set(places)) < len(places):
        found.append("two of the bookie's directories are the same")
    return found
