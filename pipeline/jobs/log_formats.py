"""Formats of system logs: the positions of time, level, component and message in a line. Pure.

Each format is one regular expression, in the syntax that Java and Python share, whose four groups are time, level,
component and message; a group that a format does not have is empty. :data:`MASKS` replace the variable parts of a
message (numbers, addresses, ids, paths); the result is the message's *template*.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogFormat:
    """A format of log lines. ``time_form`` is Spark's pattern of the time; times without a year get
    :data:`YEAR_UNKNOWN`."""

    name: str
    pattern: str
    time_form: str
    has_year: bool = True


YEAR_UNKNOWN = "1970"

EPOCH = "epoch"
"""The ``time_form`` of a time in seconds since 1970."""

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
"""All formats; the first that matches a line is used."""

UNPARSED = "unparsed"
"""The format of a line that matches none; the whole line is its message."""

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
"""Patterns of variable parts and their replacements, applied one after another."""
