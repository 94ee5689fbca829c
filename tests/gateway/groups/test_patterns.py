"""Regular expressions of consumers: what they match, what they may not have, and that none takes long (rule K16)."""

import random
import re

import pytest
from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.groups.patterns import PATTERNS_MAX, Pattern, Patterns


@pytest.mark.parametrize(
    ("text", "name", "matches"),
    [
        ("orders", "orders", True),
        ("orders", "orders-1", False),
        ("orders.*", "orders-1", True),
        ("^a(b|c)+$", "abcb", True),
        ("^a(?:b|c)+$", "ad", False),
        ("[a-c]{2,3}", "abc", True),
        ("[a-c]{2,3}", "abca", False),
        ("a{2,}", "aaaa", True),
        ("a{2}", "a", False),
        ("[^_]+", "a_b", False),
        ("[]a]+", "]a", True),
        ("[a-]+", "a-", True),
        (r"\w+\.\d{2}", "ab.12", True),
        (r"[\d.]+\W\S\D", "1.0-xy", True),
        (r"a\-b", "a-b", True),
        (r"[\-a]*", "-a", True),
        ("a*?b??", "aa", True),
        ("a|", "", True),
        ("a$b", "ab", False),
        ("(^a)b", "ab", True),
    ],
)
def test_a_pattern_matches_whole_names(text: str, name: str, matches: bool) -> None:
    assert Pattern(text).matching([name]) == ((name,) if matches else ())


@pytest.mark.parametrize(
    "text",
    ["(a", "a)", "a**", "*", "a|+", "(?=a)", "(?i)a", r"\1", r"\b", "[a", "[b-a]", "[[:alpha:]]", "a{2", "a{x}", "a{}",
     "a{3,2}", "a{1000}", "a{101}", "\\", "(" * 31 + ")" * 31, "((a{100}){100})", "a" * 600],
)  # fmt: skip
def test_what_is_no_pattern_here_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(RefusedError) as refused:
        Pattern(text)
    assert refused.value.code is Code.INVALID_REGULAR_EXPRESSION
    assert "is refused: " in refused.value.text


def test_patterns_agree_with_those_of_python() -> None:
    rng, compared = random.Random(7), 0
    for _ in range(1500):
        text = "".join(rng.choice("ab.|()*?+^$") for _ in range(rng.randint(1, 7)))
        try:
            pattern, same = Pattern(text), re.compile(text)
        except (RefusedError, re.error):
            continue
        for _ in range(4):
            name = "".join(rng.choice("ab-") for _ in range(rng.randint(0, 5)))
            assert bool(pattern.matching([name])) == bool(same.fullmatch(name)), (text, name)
            compared += 1
    assert compared > 500


def test_patterns_that_drive_others_to_try_every_way_are_decided() -> None:
    name = "a" * 200
    for text in ("(a*)*b", "(a|a)*b", "(a|aa)+b", "(.*a){20}b", "(a?){100}a{100}b"):
        assert Pattern(text).matching([name]) == ()
    assert Pattern("(.*a.*){20}").matching([f"{number}{name}" for number in range(50)])


def test_a_pattern_that_takes_too_much_work_is_refused() -> None:
    names = [random.Random(number).randbytes(90).hex() for number in range(1000)]
    with pytest.raises(RefusedError, match="too much work"):
        Pattern("(.*[02468][ace]?.*){30}[bdf]{3}.{20}").matching(names)


@pytest.mark.parametrize("innermost", ["", "a{0}", "(){100}", "$"])
def test_repetitions_within_each_other_are_too_much_work_before_they_are_done(innermost: str) -> None:
    """Ten levels would be 10^20 parts, if each were made."""
    text = "(" * 10 + innermost + "){100}" * 10
    with pytest.raises(RefusedError, match=r"too much work|more than 500 steps"):
        Pattern(text)


def test_a_class_is_as_much_work_as_a_letter() -> None:
    letters = "".join(chr(number) for number in range(0x4E00, 0x4E00 + 200))
    pattern = Pattern(f"(?:[^{letters}]?){{60}}")
    assert pattern.matching(["a" * 60, "a" * 61]) == ("a" * 60,)
    assert Pattern(f"[{letters}]+").matching([letters, "a"]) == (letters,)


def test_a_pattern_that_was_refused_is_refused_again_without_work() -> None:
    patterns = Patterns()
    text, names = "(((){20}){20}){20}", ("orders",)
    with pytest.raises(RefusedError, match="too much work") as first:
        patterns.matching(text, names)
    patterns.work_max = 10**9
    with pytest.raises(RefusedError) as second:
        patterns.matching(text, names)
    assert (second.value.code, second.value.text) == (first.value.code, first.value.text)
    assert patterns.matching(text, ("other", "names")) == (), "with that much work it is not refused"
    for number in range(PATTERNS_MAX + 5):
        with pytest.raises(RefusedError):
            patterns.matching(f"a{number}(", ())


def test_what_patterns_match_is_remembered_for_the_same_names() -> None:
    patterns = Patterns()
    assert patterns.matching("o.*", ("orders", "payments")) == ("orders",)
    assert patterns.matching("o.*", ("orders", "payments")) == ("orders",)
    assert patterns.matching("o.*", ("office", "orders")) == ("office", "orders")
    for number in range(PATTERNS_MAX + 5):
        patterns.matching(f"o{number}", ())
    assert patterns.matching("o.*", ("orders",)) == ("orders",)
