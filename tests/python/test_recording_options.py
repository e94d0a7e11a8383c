"""An option of recording stands once; the command line, signatures, help and settings follow."""

import argparse
import inspect

import kvreplay
import pytest
from kvbase.errors import ConfigError
from kvrecord import cli
from kvrecord.options import LIVE, TEXTS, Options, all_options, options_of, taken_by

FUNCTIONS = {TEXTS: kvreplay.record, LIVE: kvreplay.recorder}


def parsed(*words):
    parser = argparse.ArgumentParser()
    cli.add_options(parser)
    return cli.options_in(parser.parse_args(["--prompts", "p.txt", "-o", "t.h5", *words]))


@pytest.mark.parametrize("name", all_options())
def test_every_option_is_on_the_command_line_with_help(name):
    parser = argparse.ArgumentParser()
    cli.add_options(parser)
    assert [action.help for action in parser._actions if action.dest == name] == [all_options()[name].help]


def test_a_command_line_without_options_records_the_defaults():
    assert parsed() == Options()


def test_words_of_the_command_line_become_options():
    found = parsed("--layers", "0,2", "--with-gradient", "--labels", "recorded", "--lookahead", "--with-text")
    assert (found.layers, found.gradient, found.gradient_labels) == ("0,2", 1, "recorded")
    assert (found.lookahead, found.lookahead_budget, found.with_text) == (8, 256, True)
    assert parsed("--with-gradient").gradient == cli.SAMPLES
    assert parsed("--repeat").repeat == 2048


@pytest.mark.parametrize("taker", FUNCTIONS)
def test_a_function_shows_the_options_that_it_takes(taker):
    function = FUNCTIONS[taker]
    shown = inspect.signature(function).parameters
    for name in taken_by(taker):
        assert shown[name].default == getattr(Options(), name)
        assert shown[name].annotation is not inspect.Parameter.empty
        assert f"\n    {name}: " in function.__doc__
    assert "options" not in shown
    assert "{options}" not in function.__doc__


@pytest.mark.parametrize(
    ("taker", "given", "says"),
    [
        (TEXTS, {"gradient": -1}, "gradient = -1 is not an integer of at least 0"),
        (LIVE, {"query_stride": 0}, "query_stride = 0 is not an integer of at least 1"),
        (LIVE, {"repeat": True}, "repeat = True is not an integer of at least 1"),
        (LIVE, {"gradient_labels": "drawn"}, "gradient_labels = 'drawn': choose 'model' or 'recorded'"),
        (LIVE, {"out_layers": 3}, "out_layers = 3: give 'all', 'every:4' or a list of integers"),
    ],
)
def test_a_wrong_value_is_refused_with_the_argument(taker, given, says):
    with pytest.raises(ConfigError) as refused:
        options_of(taker, given)
    assert str(refused.value) == says


def test_zero_and_none_switch_off_what_is_off_by_default():
    off = {"repeat": 0, "lookahead": 0, "context_tokens": None}
    assert options_of(LIVE, off) == Options()


def test_a_misspelt_option_is_refused_with_the_nearest():
    with pytest.raises(TypeError, match=r"no argument 'generat' \(did you mean generate\?\)"):
        kvreplay.record(None, "a text", generat=3)
    with pytest.raises(TypeError, match=r"recorder\(\) has no option 'generate': it takes layers, dtype"):
        options_of(LIVE, {"generate": 3})


def test_settings_leave_out_parts_that_are_switched_off():
    """Traces of earlier versions, which lack these options, can then be resumed."""
    always = {"layers", "dtype", "query_stride", "out_layers", "with_output", "with_text", "compress"}
    assert Options().settings().keys() == always
    assert Options(lookahead=4).settings().keys() - always == {
        "lookahead",
        "lookahead_budget",
        "context_tokens",
    }
    assert Options(gradient=1).settings().keys() - always == {
        "gradient",
        "gradient_labels",
        "gradient_from",
        "gradient_seed",
    }
