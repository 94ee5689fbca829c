"""What is shipped for deployment fits the program."""

import re
import tomllib
from dataclasses import MISSING, fields

from octavo.bookie.config import BookieConfig, load_config
from octavo.cli.local.restarts import EXIT_DATA_WRONG
from support.tree import ROOT


def test_the_example_settings_are_valid_and_complete_and_show_the_defaults() -> None:
    example = ROOT / "deploy" / "bookie.toml"
    load_config(example, {}, {})
    shown = tomllib.loads(re.sub(r"^# (\w+ = )", r"\1", example.read_text(), flags=re.MULTILINE))
    settings = {setting.name: setting.default for setting in fields(BookieConfig)}
    assert shown.keys() == settings.keys()
    for name, default in settings.items():
        if default not in (MISSING, None) and name != "metadata":
            assert shown[name] == (list(default) if isinstance(default, tuple) else default), name


def test_systemd_starts_a_bookie_that_says_when_it_is_ready_and_not_again_when_its_data_are_wrong() -> None:
    unit = (ROOT / "deploy" / "octavo-bookie@.service").read_text()
    assert "\nType=notify\n" in unit
    assert re.search(rf"^RestartPreventExitStatus=.*\b{EXIT_DATA_WRONG}\b", unit, flags=re.MULTILINE)
    assert "octavo bookie --config" in unit
