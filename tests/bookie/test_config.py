"""Settings of a bookie: three sources, each stronger than the one before, and clear refusals."""

from pathlib import Path

import pytest
from octavo.bookie.config import BookieConfig, load_config
from octavo.protocol.errors import InvalidArgumentError


def write_toml(directory: Path, text: str) -> Path:
    path = directory / "bookie.toml"
    path.write_text(text)
    return path


def test_flags_are_stronger_than_environment_and_environment_than_file(tmp_path: Path) -> None:
    file = write_toml(
        tmp_path, 'data_dir = "from-file"\nport = 1\nhost = "1.1.1.1"\nauth = "none"\ncache_bytes = 1000000\n'
    )
    config = load_config(
        file,
        {"OCTAVO_BOOKIE_PORT": "2", "OCTAVO_BOOKIE_HOST": "2.2.2.2", "OCTAVO_METADATA": "sqlite:////m.db"},
        {"port": 3, "host": None},
    )
    assert (config.data_dir, config.port, config.host) == (Path("from-file"), 3, "2.2.2.2")
    assert (config.cache_bytes, config.metadata) == (1000000, "sqlite:////m.db")


def test_everything_but_the_data_directory_has_a_default() -> None:
    config = load_config(None, {}, {"data_dir": Path("d")})
    assert config == BookieConfig(data_dir=Path("d"))
    assert config.journal_directory == Path("d/journal")
    assert load_config(None, {}, {"data_dir": "d", "journal_dir": "j"}).journal_directory == Path("j")


@pytest.mark.parametrize(
    ("flags", "environment", "toml", "expected"),
    [
        ({}, {}, "", "data_dir is not set"),
        ({"data_dir": "d", "port": 65536}, {}, "", "--port must be a whole number from 0 to 65535, not 65536"),
        ({"data_dir": "d", "advertise": "nowhere"}, {}, "", "--advertise must be HOST:PORT"),
        ({"data_dir": "d", "advertise": "h" * 64 + ":1"}, {}, "", "--advertise must name a host"),
        ({"data_dir": "d", "admin_listen": "a..b:1"}, {}, "", "--admin-listen must name a host"),
        ({"data_dir": "d", "host": "h" * 64}, {}, "", "--host must name a host.*1 to 63 characters"),
        ({"data_dir": "d", "rack": "dc1/rack2"}, {}, "", "--rack must be a path of 1 to 8 steps like /dc1/rack2"),
        ({"data_dir": "d", "host_id": "a/b"}, {}, "", "--host-id must be auto, or 1 to 64 letters, digits and ._:-"),
        ({"data_dir": "d"}, {"OCTAVO_BOOKIE_HOST_ID": ""}, "", "OCTAVO_BOOKIE_HOST_ID must be auto"),
        ({"data_dir": "d"}, {"OCTAVO_BOOKIE_RACK": "/"}, "", "OCTAVO_BOOKIE_RACK must be a path"),
        ({"data_dir": "d", "bogus": 1}, {}, "", "'bogus' is not a setting"),
        ({"data_dir": ""}, {}, "", "--data-dir must be a path"),
        ({"data_dir": "d"}, {"OCTAVO_BOOKIE_PORT": "x"}, "", "OCTAVO_BOOKIE_PORT must be a whole number"),
        ({"data_dir": "d"}, {"OCTAVO_BOOKIE_PROT": "1"}, "", "OCTAVO_BOOKIE_PROT is not a setting"),
        ({"data_dir": "d"}, {"OCTAVO_LOG_LEVEL": "loud"}, "", "OCTAVO_LOG_LEVEL must be one of debug"),
        ({"data_dir": "d"}, {}, "prot = 1", "'prot' is not a setting"),
        ({"data_dir": "d"}, {}, "port = true", "port must be a whole number"),
        ({"data_dir": "d"}, {}, "checkpoint_seconds = nan", "checkpoint_seconds must be a number of seconds"),
        ({"data_dir": "d"}, {}, "port = ", "not valid TOML"),
    ],
)
def test_bad_settings_are_refused_naming_the_key(
    tmp_path: Path, flags: dict[str, object], environment: dict[str, str], toml: str, expected: str
) -> None:
    file = write_toml(tmp_path, toml) if toml else None
    with pytest.raises(InvalidArgumentError, match=expected):
        load_config(file, environment, flags)


def test_a_missing_config_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"nowhere\.toml: No such file"):
        load_config(tmp_path / "nowhere.toml", {}, {"data_dir": "d"})


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_no_client_can_use_is_refused_with_the_remedy(host: str) -> None:
    with pytest.raises(InvalidArgumentError, match="--advertise HOST:PORT"):
        load_config(None, {}, {"data_dir": Path("d"), "host": host})
    config = load_config(None, {}, {"data_dir": Path("d"), "host": host, "advertise": "bookie1:3181", "auth": "none"})
    assert config.advertise == "bookie1:3181"
