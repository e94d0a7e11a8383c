"""Asks the Hugging Face hub for a model once and quietly, before torch is imported.

The hub's own loaders try for half a minute, and print each try, before they say that there is no network.
"""

import difflib
import re

from kvbase.errors import TraceError
from kvbase.files import reason

ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")  # an old id such as gpt2 has no organisation
NO_MODEL = "no folder, no installed model package"


def answers(name, file, packages=()):
    """True if the hub has the file of the repository `name`; False if it does not say so, but the cache holds
    the file. TraceError with the remedy otherwise. packages: models of installed packages, for a hint."""
    no_id = f"{name}: {NO_MODEL}{_meant(name, packages)} and no Hugging Face id (org/name)"
    if not ID.fullmatch(name):
        raise TraceError(no_id)
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache

    try:
        get_hf_file_metadata(hf_hub_url(name, file))
    except errors.HFValidationError as error:
        raise TraceError(no_id) from error
    except Exception as error:  # the types of a failed connection differ between releases
        if isinstance(try_to_load_from_cache(name, file), str):
            return False
        raise TraceError(_refusal(name, file, error, packages)) from error
    return True


def _refusal(name, file, error, packages):
    from huggingface_hub import constants, errors

    host = constants.ENDPOINT.partition("://")[2]
    if isinstance(error, errors.GatedRepoError):
        page = f"{constants.ENDPOINT}/{name}"
        return f"{name}: {host} wants its terms accepted: do so at {page}, then run hf auth login"
    if isinstance(error, errors.EntryNotFoundError):
        return f"{name}: {host} has no {file} of this model: name a file of it with --gguf-file"
    what = f"{name}: {NO_MODEL}{_meant(name, packages)}, and"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{what} {host} shows no such model: check the name; for a private one run hf auth login first"
    if constants.HF_HUB_OFFLINE:
        return f"{what} not in the cache, while HF_HUB_OFFLINE is set: unset it, or give a local folder"
    return (
        f"{what} not in the cache of {host}, which does not answer ({reason(error)}): give a local folder, "
        f"or run hf download {name} where there is a network"
    )


def _meant(name, packages):
    close = difflib.get_close_matches(name, packages, 1)
    return f" (did you mean {close[0]}?)" if close else ""
