"""A Llama of one layer that looks a key up in its prompt and writes the value behind it.

A pair token (key, value) holds both; a question token asks for a key; the answer is the value's token, then
the end.
"""

import torch
import transformers

KEYS = VALUES = 8
PAIRS = KEYS * VALUES
QUESTION, ANSWER = PAIRS, PAIRS + KEYS  # the first token that asks, the first that answers
FILLER, END = ANSWER + VALUES, ANSWER + VALUES + 1
VOCABULARY = END + 1
HIDDEN, DIM = 40, 32
KEY, VALUE, ASKED, WRITTEN, DONE, REST = 0, 8, 16, 24, 32, 33  # places in the residual stream
STILL = slice(1, 1 + KEYS)  # numbers of a head that rotary embedding leaves as they are
MATCH = 14.0  # logit of the asked key; others have 0


def pair(key, value):
    return key * VALUES + value


def question(key):
    return QUESTION + key


def answer(value):
    return ANSWER + value


def lookup_model():
    """The model, without any training: every weight follows from the places above."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, head_dim=DIM, max_position_embeddings=256,
        rms_norm_eps=1e-9,
        rope_parameters={"rope_type": "default", "rope_theta": 1e60},
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).float().eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.copy_(torch.ones_like(weights) if weights.ndim == 1 else torch.zeros_like(weights))
        _embed(model.model.embed_tokens.weight)
        one = torch.eye(KEYS)
        attention = model.model.layers[0].self_attn
        # Behind the norm, a pair's two numbers are sqrt(HIDDEN / 2) and a question's one is sqrt(HIDDEN).
        gain = MATCH * DIM**0.5 / (HIDDEN / 2**0.5)
        attention.q_proj.weight[STILL, ASKED : ASKED + KEYS] = gain * one
        attention.k_proj.weight[STILL, KEY : KEY + KEYS] = one
        attention.v_proj.weight[:VALUES, VALUE : VALUE + VALUES] = one
        attention.o_proj.weight[WRITTEN : WRITTEN + VALUES, :VALUES] = one
        model.lm_head.weight[ANSWER : ANSWER + VALUES, WRITTEN : WRITTEN + VALUES] = 4 * one
        model.lm_head.weight[END, DONE] = 40.0
    return model


def _embed(weights):
    for key in range(KEYS):
        weights[question(key), ASKED + key] = 1
        for value in range(VALUES):
            weights[pair(key, value), [KEY + key, VALUE + value]] = 1
    for value in range(VALUES):
        weights[answer(value), [WRITTEN + value, DONE]] = 1
    weights[FILLER, REST] = 1
