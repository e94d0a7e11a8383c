"""Closed loop: measures a model's loss when its attention sees only the rows that a compression method kept.

The engine measures each head with the queries, keys and values of the full model. Here the model itself runs
again over the recorded tokens, and each layer attends only to the rows in `kept.h5`, so errors propagate
through the layers. `confirm.csv` gets the loss, the divergence from the full model and how often the most
likely next token is the same.
"""

__version__ = "0.1.0"
