"""Forms of system logs: where the time, the level, the component and the message stand in a line. Pure.

Each form is one regular expression, in the syntax that Java and Python share, whose four groups are time, level,
component and message; a group that a form does not have is empty. What varies in a message (numbers, addresses, ids,
paths) is masked by :data:`MASKS`; what is left is its *template*.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogFormat:
    """A form of log lines; ``time_form`` is Spark's pattern of the time. Forms without a year are given
    :data:`YEAR_UNKNOWN`."""

    name: str
    pattern: str
    time_form: str
    has_year: bool = True


YEAR_UNKNOWN = "1970"

EPOCH = "epoch"
"""The pattern of a time in seconds since 1970."""

_SYSLOG_TIME = r"([A-Z][a-z]{2} +\d{1,2} \d{2}:\d{2}:\d{2})"

FORMATS = (
    LogFormat("hdfs", r"^(\d{6} \d{6}) \d+ ([A-Z]+) ([^:]+): (.*)$", "yyMMdd HHmmss"),
    LogFormat(
        "hadoop",
        r"^(\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2},\d{3}) ([A-Z]+) \[[^]]*\] ([^:]+): (.*)$",
        "yyyy-MM-dd HH:mm:ss,SSS",
    ),
    LogFormat(
        "zookeeper",
        r"^(\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2},\d{3}) - ([A-Z]+) +\[(?:.*:)?([\w$]+)@\d*\] - (.*)$",
        "yyyy-MM-dd HH:mm:ss,SSS",
    ),
    LogFormat("spark", r"^(\d{2}/\d{2}/\d{2} \d{2}:\d{2}:\d{2}) ([A-Z]+) ([^:]+): (.*)$", "yy/MM/dd HH:mm:ss"),
    LogFormat(
        "android",
        r"^(\d{2}-\d{2} \d{2}:\d{2}:\d{2}\.\d{3}) +\d+ +\d+ ([VDIWEF]) ([^:]*?) *: ?(.*)$",
        "yyyy MM-dd HH:mm:ss.SSS",
        has_year=False,
    ),
    LogFormat("healthapp", r"^(\d{8}-\d{1,2}:\d{1,2}:\d{1,2}:\d{1,3})\|()([^|]*)\|\d+\|(.*)$", "yyyyMMdd-H:m:s:SSS"),
    LogFormat(
        "proxifier", r"^\[(\d{2}\.\d{2} \d{2}:\d{2}:\d{2})\] ()(.+?) - (.*)$", "yyyy MM.dd HH:mm:ss", has_year=False
    ),
    LogFormat(
        "thunderbird",
        r"^\S+ (\d{9,10}) \d{4}\.\d{2}\.\d{2} \S+ [A-Z][a-z]{2} +\d+ \d{2}:\d{2}:\d{2} "
        r"\S+ ()([^\[:]+)(?:\[[^]]*\])?: (.*)$",
        EPOCH,
    ),
    LogFormat("hpc", r"^\d+ \S+ (?=\S+ \S+ (\d{9,10}) )()(\S+) \S+ \d+ -?\d+ (.*)$", EPOCH),
    LogFormat(
        "alternatives",
        r"^(?=\S+ (\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}): )()(update-alternatives) \S+ \S+ (.*)$",
        "yyyy-MM-dd HH:mm:ss",
    ),
    LogFormat("dpkg", r"^(\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}) ()([a-z-]+) (.*)$", "yyyy-MM-dd HH:mm:ss"),
    LogFormat(
        "syslog",
        rf"^{_SYSLOG_TIME} ()\S+ (.+?)(?:\[\d+\])?(?: \([^)]*\))?: (.*)$",
        "yyyy MMM d HH:mm:ss",
        has_year=False,
    ),
)
"""Every form known; a line is taken in the first that fits."""

UNPARSED = "unparsed"
"""The form of a line that fits none: all of it is the message."""

MASKS: tuple[tuple[str, str], ...] = (
    (r"\b[\w.+-]+:(?:all|amd64|arm64|armhf|i386|ppc64el|riscv64|s390x)\b", "<*>"),
    (r"(?<![\w<])\d[\w.:]*(?:[+~-]+[\w.]+)+", "<*>"),
    (r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b", "<*>"),
    (r"(?:/[\w.$+-]+){2,}/?", "<*>"),
    (r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b", "<*>"),
    (r"\b(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{0,4}\b", "<*>"),
    (r"\b0x[0-9a-fA-F]+\b", "<*>"),
    (r"\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,}\b", "<*>"),
    (r"-?\b\d+(?:[.,:]\d+)*\b", "<*>"),
    (r"(?<=[A-Za-z_])-?\d+", "<*>"),
    (r"<\*>(?:[.,:_-]?<\*>)+", "<*>"),
)
"""What varies, and what stands for it; applied one after another."""


def parse_line(line: str) -> tuple[str, str, str, str, str]:
    """Form, time, level, component and message of a line, as the job finds them: for trying forms out."""
    for known in FORMATS:
        found = re.match(known.pattern, line)
        if found is not None:
            return known.name, found[1], found[2], found[3], found[4]
    return UNPARSED, "", "", "", line


def template_of(message: str) -> str:
    """The message without what varies, as the job finds it."""
    for pattern, replacement in MASKS:
        message = re.sub(pattern, replacement, message)
    return message


def check_formats(formats: Iterable[LogFormat] = FORMATS) -> None:
    """Assert what the job relies on: four groups each."""
    for known in formats:
        assert re.compile(known.pattern).groups == 4, known.name
