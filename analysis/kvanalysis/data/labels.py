"""Names for the legend: the method and the parameters that distinguish its instances."""

import json

import numpy as np

from .row_formats import SOURCE, row_format_text

ORACLE_METHODS = ("topp",)


def add_labels(frame):
    """`frame` with the columns `label` (str) and `oracle` (bool); needs `params_json` and `given_json` as
    well as the dicts `params` and `given`.

    `given` holds an instance's parameters that differ from the method's defaults; parameters that all
    instances of a method share are left out. Values that follow from a budget are not in it, so they do not
    split curves.
    """
    by = ["method", "given_json", "params_json"]
    instance = frame.groupby(by, sort=False).ngroup().to_numpy()
    known = frame.iloc[np.unique(instance, return_index=True)[1]]
    names = {method: _telling(rows["given"]) for method, rows in known.groupby("method", sort=False)}
    of_each = list(zip(known["method"], known["given"], known["params"], strict=True))
    labels = [_label(method, given, names[method]) for method, given, _ in of_each]
    oracles = [is_oracle(method, params) for method, _, params in of_each]
    return frame.assign(label=np.array(labels, object)[instance], oracle=np.array(oracles, bool)[instance])


def format_names(frame):
    """Series: the short name of the row format of each row of `load`'s table; "source" if it names none."""
    known = frame.drop_duplicates("given_json")
    formats = [given.get("row_format", SOURCE) for given in known["given"]]
    return frame["given_json"].map(dict(zip(known["given_json"], map(row_format_text, formats), strict=True)))


def is_oracle(method, params):
    """Whether the method reads something that no cache of its budget could: the full cache, or the future."""
    return (
        "oracle" in method
        or method in ORACLE_METHODS
        or _votes_by_later_rows(method, params)
        or _is_global_oracle(params)
        or _budgets_follow_rows(params)
    )


def _votes_by_later_rows(method, params):
    """LAQ with the trace's own next rows, if no other rows were generated."""
    return method == "laq" and not params.get("generated")


def _budgets_follow_rows(params):
    """Budgets that follow from the rows on which they are measured."""
    rule = params.get("allocator")
    return isinstance(rule, dict) and rule.get("calibration") == "self"


def _is_global_oracle(params):
    """H2O's scores summed over future rows too: no cache can do that, so it must not be called H2O."""
    return params.get("variant") == "oracle_global"


def _telling(all_given):
    """Sorted names of the parameters that differ between the instances of one method."""
    instances = list({json.dumps(given, sort_keys=True): given for given in all_given}.values())
    names = sorted({name for given in instances for name in given})
    return [name for name in names if len({json.dumps(given.get(name)) for given in instances}) > 1]


def _label(method, given, names):
    shown = [name for name in names if name in given]
    if method == "exact" and "row_format" in given and "row_format" not in shown:
        shown.append("row_format")  # quantised, it is not exact
    if _is_global_oracle(given):
        method, shown = "oracle_global", [name for name in shown if name != "variant"]
    return " ".join([method, *named_values(given, shown)])


def named_values(given, names):
    """["name=value"] for an instance's parameters; a row format is shown by its value alone."""
    return [
        row_format_text(given[name]) if name == "row_format" else f"{name}={_value(given[name])}"
        for name in names
    ]


def _value(value):
    if isinstance(value, dict) and "name" in value:
        return "/".join(
            str(part) for part in [value["name"], *(value[key] for key in value if key != "name")]
        )
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
