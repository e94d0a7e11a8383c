"""Names for the legend: the method and what tells its instances apart."""

import json

import numpy as np

from .row_formats import row_format_text

ORACLE_METHODS = ("topp",)


def add_labels(frame):
    """`frame` with the columns `label` (str) and `oracle` (bool); needs `params_json` and `given_json` beside
    the dicts `params` and `given`.

    `given` holds what an instance was given beside the method's defaults; what all instances of a method
    share is left out. Values that follow from a budget are not in it, so they split no curve.
    """
    by = ["method", "given_json", "params_json"]
    instance = frame.groupby(by, sort=False).ngroup().to_numpy()
    known = frame.iloc[np.unique(instance, return_index=True)[1]]
    names = {method: _telling(rows["given"]) for method, rows in known.groupby("method", sort=False)}
    of_each = list(zip(known["method"], known["given"], known["params"], strict=True))
    labels = [_label(method, given, names[method]) for method, given, _ in of_each]
    oracles = [is_oracle(method, params) for method, _, params in of_each]
    return frame.assign(label=np.array(labels, object)[instance], oracle=np.array(oracles, bool)[instance])


def is_oracle(method, params):
    """Whether the method reads what no cache of its budget could: the full cache, or the future."""
    return (
        "oracle" in method
        or method in ORACLE_METHODS
        or _votes_by_later_rows(method, params)
        or _is_global_oracle(params)
        or _learns_itself(params)
    )


def _votes_by_later_rows(method, params):
    """LAQ by the trace's own next rows, where no others were generated."""
    return method == "laq" and not params.get("generated")


def _learns_itself(params):
    """Budgets that follow from the rows they are measured on."""
    rule = params.get("allocator")
    return isinstance(rule, dict) and rule.get("calibration") == "self"


def _is_global_oracle(params):
    """H2O's scores summed over future rows too: no cache can do that, so it may not be called H2O."""
    return params.get("variant") == "oracle_global"


def _telling(all_given):
    """Sorted names of the parameters in which the instances of one method differ."""
    instances = list({json.dumps(given, sort_keys=True): given for given in all_given}.values())
    names = sorted({name for given in instances for name in given})
    return [name for name in names if len({json.dumps(given.get(name)) for given in instances}) > 1]


def _label(method, given, names):
    shown = [name for name in names if name in given]
    if _is_global_oracle(given):
        method, shown = "oracle_global", [name for name in shown if name != "variant"]
    return " ".join([method, *named_values(given, shown)])


def named_values(given, names):
    """["name=value"] of what an instance was given; a row format is known by its value."""
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
