"""The order of the tests."""


def pytest_collection_modifyitems(items):
    """Files that hold long tests come first: a worker takes whole files, and none is left with such a one at
    the end (pytest-xdist keeps this order with --no-loadscope-reorder)."""
    long = {item.path for item in items if item.get_closest_marker("long")}
    items.sort(key=lambda item: item.path not in long)
