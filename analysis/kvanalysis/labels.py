"""Names for the legend: the method and the parameters that tell its instances apart."""

import json

import pandas as pd

# Where a cell sits. Inside one context, different parameters mean different instances of a method;
# across contexts an integer may differ only because it was resolved from the budget (h2o's `heavy`).
CONTEXT = ["trace_id", "prompt", "layer", "kv_head", "budget_tokens"]
ORACLE_METHODS = ("topp",)


def add_labels(frame):
    """`frame` with the columns `label` (str) and `oracle` (bool); needs `params` and `params_json`."""
    frame["label"] = ""
    frame["oracle"] = False
    for method, rows in frame.groupby("method", sort=False):
        names = _telling_parameters(rows)
        instances = rows.drop_duplicates("params_json").set_index("params_json")["params"]
        texts = {key: _label(method, params, names) for key, params in instances.items()}
        oracles = {key: is_oracle(method, params) for key, params in instances.items()}
        frame.loc[rows.index, "label"] = rows["params_json"].map(texts)
        frame.loc[rows.index, "oracle"] = rows["params_json"].map(oracles).astype(bool)
    return frame


def is_oracle(method, params):
    """Whether the method reads what no cache of its budget could: the full cache, or the future."""
    return "oracle" in method or method in ORACLE_METHODS or _is_global_oracle(params)


def _is_global_oracle(params):
    """H2O's scores summed over future rows too; the specification forbids to call that H2O."""
    return params.get("variant") == "oracle_global"


def _label(method, params, names):
    shown = [name for name in names if name in params]
    if _is_global_oracle(params):
        method, shown = "oracle_global", [name for name in shown if name != "variant"]
    return " ".join([method] + [f"{name}={_value(params[name])}" for name in shown])


def _value(value):
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _telling_parameters(rows):
    """Sorted names of the parameters that a label of this method needs."""
    table = _parameter_table(rows)
    names = [name for name in table.columns if name not in CONTEXT]
    telling = [name for name in names if _varies(table, CONTEXT, name) or _never_resolved(table, name)]
    for name in sorted(telling, key=lambda name: -table[name].nunique()):
        rest = [other for other in telling if other != name]
        # `recent` follows from `recent_frac` and the budget: it would split one curve into points.
        if rest and _varies(table, rest, name) and not _varies(table, CONTEXT + rest, name):
            telling = rest
    return sorted(telling)


def _parameter_table(rows):
    """One row per (context, instance): the context and every parameter as JSON text, "" if absent."""
    cells = rows.drop_duplicates([*CONTEXT, "params_json"])
    instances = cells.drop_duplicates("params_json")
    names = sorted({name for params in instances["params"] for name in params} - set(CONTEXT))
    texts = [
        [json.dumps(params[name]) if name in params else "" for name in names]
        for params in instances["params"]
    ]
    table = pd.DataFrame(texts, columns=names, index=instances["params_json"].to_numpy(), dtype=object)
    return cells[CONTEXT].reset_index(drop=True).join(table.loc[cells["params_json"]].reset_index(drop=True))


def _varies(table, by, name):
    return table.groupby(by, dropna=False)[name].nunique().max() > 1


def _never_resolved(table, name):
    """Varies, and is no integer somewhere: such a value was chosen, not computed from the budget."""
    values = table[name].unique()
    return len(values) > 1 and any(not value.lstrip("-").isdigit() for value in values if value)
