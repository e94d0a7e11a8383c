"""Records queries, keys and values of a Hugging Face decoder into a trace file (HDF5, schema 1).

Command line: `kvdump --help`. Library: `with kvdump.record(model, path) as rec: model.generate(...)`.
"""

from .errors import DumpError, UsageError

__version__ = "0.1.0"
__all__ = ["DumpError", "UsageError", "__version__", "record"]


def __getattr__(name):
    # torch is imported only when something is recorded: prompts, sizes and files work without it.
    if name == "record":
        import importlib

        return importlib.import_module(".recorder", __name__).record
    raise AttributeError(name)
