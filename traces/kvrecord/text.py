"""Text of tokens, and their classes, for methods that treat special tokens and punctuation differently."""

import unicodedata

import numpy as np

WORD, PUNCTUATION, SPECIAL = 0, 1, 2


def token_class(text, is_special):
    """Class of one token: SPECIAL, PUNCTUATION (only punctuation, symbols and spaces), or WORD."""
    if is_special:
        return SPECIAL
    marks = text.strip()
    return PUNCTUATION if marks and all(unicodedata.category(c)[0] in "PS" for c in marks) else WORD


def token_classes(tokenizer, tokens):
    """uint8 [T]: class of every token id (0 word, 1 punctuation, 2 special)."""
    special = set(tokenizer.all_special_ids)
    known = {t: token_class(tokenizer.decode([t]), t in special) for t in set(tokens)}
    return np.array([known[t] for t in tokens], dtype=np.uint8)


def token_texts(tokenizer, tokens):
    """[T] str: the text of every token id decoded alone; U+FFFD if a token is part of a character."""
    known = {t: tokenizer.decode([t]) for t in set(tokens)}
    return [known[t] for t in tokens]
