"""kvconfirm: what a model loses when its attention sees only what a compression method kept.

The engine measures each head with the queries, keys and values of the full model. Here the model itself runs
once more over the recorded tokens, each layer attending to nothing but the rows in `kept.h5`, so that errors
travel through the layers; the loss, the distance to the full model and the agreement of the next token go to
`confirm.csv`.
"""

__version__ = "0.1.0"
