"""TLA+ values as TLC prints them."""

import pytest

from gdn_apc.spec.values import Name, as_tla, parse, parse_state


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-2", -2),
        ("TRUE", True),
        ('"a \\"b\\""', 'a "b"'),
        ("<<>>", ()),
        ("<<1, <<2>>>>", (1, (2,))),
        ("{3, 1}", frozenset({1, 3})),
        ("1 .. 3", frozenset({1, 2, 3})),
        ("[n |-> 1, who |-> s1]", {"n": 1, "who": Name("s1")}),
        ('(s1 :> <<"s">> @@\n  s2 :> <<>>)', {Name("s1"): ("s",), Name("s2"): ()}),
    ],
)
def test_a_value_is_read(text, value):
    """Every form that the design's variables take."""
    assert parse(text) == value


@pytest.mark.parametrize("value", [3, True, "s", (1, ("a", "b")), {"n": 2, "table": (0, 4)}, Name("s1")])
def test_a_value_that_is_written_reads_back(value):
    """Constants and traces go to TLC in this form."""
    assert parse(as_tla(value)) == value


@pytest.mark.parametrize("text", ["", "<<1", "[n = 1]", "1 2", "%"])
def test_what_is_no_value_is_refused(text):
    """A line that is misread must not become a state."""
    with pytest.raises(ValueError, match="text: "):
        parse(text)


def test_a_value_without_a_form_is_refused():
    """The error names the value."""
    with pytest.raises(TypeError, match=r"value: 1\.5 has no TLA\+ form"):
        as_tla(1.5)


def test_a_state_is_read():
    """Values run over lines, and a variable's name may stand inside another's value."""
    text = "/\\ n = 1\n/\\ flight = << [m |-> 2],\n   [m |-> 1] >>\n/\\ at = Null"
    assert parse_state(text) == {"n": 1, "flight": ({"m": 2}, {"m": 1}), "at": Name("Null")}
