"""A tokenizer whose tokens are the bytes of a text, with a chat template, and a tiny model for it."""

import transformers
from tiny_models import build
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}]\n{{ message['content'] }}[/{{ message['role'] }}]\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant]\n{% endif %}"
)
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
POSITIONS = 4096


def letters(template=TEMPLATE):
    """The tokenizer. It has no special token but the end of a text."""
    words = {letter: number for number, letter in enumerate(LETTERS)} | {"</s>": len(LETTERS)}
    whole = Tokenizer(models.BPE(vocab=words, merges=[]))
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    whole.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=whole, eos_token="</s>", pad_token="</s>"
    )
    tokenizer.chat_template = template
    return tokenizer


def letters_model(folder):
    """Saves the tokenizer and a tiny model with random weights to a folder."""
    build("Llama", vocab_size=len(LETTERS) + 1, max_position_embeddings=POSITIONS).save_pretrained(folder)
    letters().save_pretrained(folder)
    return folder
