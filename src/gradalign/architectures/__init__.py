"""Functions that return an ordinary Keras model with named layers and one output per task.

>>> from gradalign.layers import Categorical
>>> shared_private({"city": Categorical(5)}, ["click", "buy"]).name
'shared_private'
"""

from gradalign.architectures.shared_private import shared_private

__all__ = ["shared_private"]
