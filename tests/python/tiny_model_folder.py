"""Tiny models saved to a folder with a tokenizer, as the recorder's command line loads them."""

import json

import torch
import transformers
from tiny_models import ARCHITECTURES, VOCABULARY, build
from tokenizers import Tokenizer, models, pre_tokenizers

# Special tokens are also found inside words, so no word may start like one.
WORDS = {"<s>": 0, "</s>": 1, "<unk>": 2} | {f"w{i}": i for i in range(3, VOCABULARY)}
TEXT = " ".join(f"w{(5 * i * i + i) % 60 + 3}" for i in range(20))


def saved(folder, name="llama", dtype=torch.float32, **changes):
    """Saves the tokenizer and the model of an architecture, or of the class prefix `name`, to a folder."""
    known = name in ARCHITECTURES
    model = ARCHITECTURES[name].build() if known else build(name, **changes)
    return folder_of(model.to(dtype), folder)


def folder_of(model, folder):
    """Saves a model and the tokenizer to a folder."""
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def tokenizer():
    """A tokenizer of WORDS, without a chat template."""
    words = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", eos_token="</s>", pad_token="</s>"
    )


def words_for(model, prompts, *always):
    """make(output, options...): arguments of the recorder for a saved model and its prompts."""

    def make(output, *options):
        given = ("--model", model, "--prompts", prompts, "-o", output, *always, *options)
        return [str(word) for word in given]

    return make


def jsonl(path, *texts):
    """Writes a file with one prompt per text, named p0, p1, ..."""
    path.write_text("".join(json.dumps({"id": f"p{i}", "text": text}) + "\n" for i, text in enumerate(texts)))
    return path
