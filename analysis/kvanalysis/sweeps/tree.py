"""A configuration as YAML nodes: values keep their text, so that the engine reads them as their author wrote
them."""

from pathlib import Path

import yaml
from kvbase.files import why_unreadable

from ..errors import SweepError

NULL, MAP = "tag:yaml.org,2002:null", "tag:yaml.org,2002:map"
FILE_PREFIX = "file:"
WIDE = 1_000_000  # characters: values are not folded over several lines


def read_tree(path):
    """The root node, a map. Raises SweepError."""
    try:
        with Path(path).open(encoding="utf-8") as file:  # marks of nodes use the name of this file
            root = yaml.compose(file, yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
        raise SweepError(f"{path}: {why_unreadable(path, problem)}") from problem
    except RecursionError as problem:
        raise SweepError(f"{path}: cannot be read: nested too deeply") from problem
    if not isinstance(root, yaml.MappingNode):
        raise SweepError(f"{path}: a configuration is a map that starts with the line `schema: 1`")
    return root


def tree_text(root):
    """The document as text; parsing it gives the same nodes."""
    return yaml.serialize(root, Dumper=yaml.SafeDumper, allow_unicode=True, width=WIDE)


def node_of(value):
    """The node of a Python value."""
    return yaml.compose(yaml.safe_dump(value), yaml.SafeLoader)


def child(node, key):
    """The value of a map's key, None if it lacks the key."""
    return next((value for name, value in node.value if name.value == key), None)


def without(root, key):
    """The map without a key."""
    kept = [pair for pair in root.value if pair[0].value != key]
    return yaml.MappingNode(root.tag, kept, flow_style=root.flow_style)


def with_value(root, key, node):
    """The map with `key` at its end."""
    root = without(root, key)
    root.value.append((node_of(key), node))
    return root


def override(root, assignment):
    """Sets KEY=VALUE like `kvreplay run --set`: keys joined by points, entries of a list by their number,
    the value as YAML. Raises SweepError."""
    key, equals, text = assignment.partition("=")
    if not key or not equals:
        raise SweepError(f"--set {assignment}: write KEY=VALUE, for example --set seeds.count=2")
    try:
        value = yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as problem:
        raise SweepError(f"--set {assignment}: the value is not valid YAML") from problem
    _set(root, key, value or node_of(None), assignment)


def _set(node, path, value, assignment, walked=""):
    """Sets the value at `path` below `node`; a key may itself contain a point (gqa.level)."""
    held = [name.value for name, _ in node.value] if isinstance(node, yaml.MappingNode) else []
    word, _, rest = (path, "", "") if path in held else path.partition(".")
    at = _place(node, word, walked, assignment)
    if rest:
        below = _opened(node.value[at], walked + word)
        _replace(node, at, below)
        _set(below, rest, value, assignment, f"{walked}{word}.")
    else:
        _replace(node, at, value)


def _place(node, word, walked, assignment):
    """Index into the node's value; a map gets a missing key."""
    if isinstance(node, yaml.MappingNode):
        names = [name.value for name, _ in node.value]
        if word not in names:
            node.value.append((node_of(word), node_of(None)))
            return len(names)
        return names.index(word)
    if not isinstance(node, yaml.SequenceNode):
        raise SweepError(f'--set {assignment}: {walked[:-1]} is a single value and has no "{word}"')
    if not word.isdecimal() or int(word) >= len(node.value):
        entries = f"{walked[:-1]} has {len(node.value)} entries, numbered from 0"
        raise SweepError(f'--set {assignment}: {entries}; there is no "{word}"')
    return int(word)


def _opened(entry, walked):
    """A copy of the node below an entry, which an alias may share. Null becomes a map, and so does a method
    that is written as its name alone."""
    node = entry[1] if isinstance(entry, tuple) else entry
    if not isinstance(node, yaml.ScalarNode):
        return type(node)(node.tag, list(node.value), node.start_mark, node.end_mark, node.flow_style)
    if node.tag == NULL:
        return yaml.MappingNode(MAP, [])
    return yaml.MappingNode(MAP, [(node_of("name"), node)]) if walked.startswith("methods.") else node


def _replace(node, at, value):
    node.value[at] = (node.value[at][0], value) if isinstance(node, yaml.MappingNode) else value


def with_absolute_paths(root, folder):
    """The tree with absolute paths instead of paths relative to `folder`: traces, and files in methods'
    parameters."""
    traces = child(root, "traces")
    if traces is not None:
        root = with_value(root, "traces", _mapped(traces, lambda text: _beside(folder, text)))
    for method in getattr(child(root, "methods"), "value", []):
        if isinstance(method, yaml.MappingNode):
            method.value[:] = [(name, _absolute(name.value, value, folder)) for name, value in method.value]
    return root


def _absolute(key, node, folder):
    if key == "uniforms":
        return _mapped(node, lambda text: _beside(folder, text))
    if key == "allocator":
        return _mapped(node, lambda text: _beside_prefix(folder, text))
    return node


def _mapped(node, change):
    """The node with `change` applied to its text, or to the texts of its entries; nulls and maps are
    unchanged."""
    if isinstance(node, yaml.SequenceNode):
        return yaml.SequenceNode(node.tag, [_mapped(item, change) for item in node.value], flow_style=True)
    if not isinstance(node, yaml.ScalarNode) or node.tag == NULL:
        return node
    return node_of(change(node.value))


def _beside(folder, text):
    return str((folder / text).resolve())


def _beside_prefix(folder, text):
    if not text.startswith(FILE_PREFIX):
        return text
    return FILE_PREFIX + _beside(folder, text.removeprefix(FILE_PREFIX))
