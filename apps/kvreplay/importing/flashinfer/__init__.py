"""Dumps of FlashInfer's flight recorder (FLASHINFER_LOGLEVEL=10): a folder for each call of its API.

    dump/session.jsonl                                       every call in order, one JSON object a line
    dump/20260108_143216_802_pid7_NAME_call0001/metadata.jsonl   name, signature, arguments without tensors
                                              /inputs.pt         {"arg_1": tensor, "kwarg_q": tensor, ...}
                                              /outputs.pt        {"result": tensor}

Tensors are in .pt files, or in .safetensors with FLASHINFER_DUMP_SAFETENSORS=1. A nested tensor has the key
arg_2__0. `dump.py` lists the calls in order and `call.py` reads one. `plan.py` and `work.py` say what a call
computes, `passes.py` finds forward passes and layers, and `prompts.py` joins the passes of a prompt.
"""

from .format import FORMAT

__all__ = ["FORMAT"]
