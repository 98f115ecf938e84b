"""GradAlign: Keras 3 models on TensorFlow whose tasks pull the shared representation the same way.

Each task's gradient with respect to the shared representation goes to a discriminator, and the discriminator's loss
flows back along that gradient, second order, until the tasks' gradients cannot be told apart.

Every name here is loaded when it is first used, so that naming the package loads no TensorFlow:

>>> import gradalign as ga
>>> ga.__version__
'0.1.0'
>>> "MultiTaskModel" in dir(ga)
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gradalign._environment import check_environment
from gradalign._registration import register_with_keras

check_environment()

if TYPE_CHECKING:  # What `__getattr__` gives, for editors and type checkers; a test holds both to the same names.
    from gradalign import alignment as alignment
    from gradalign import architectures as architectures
    from gradalign import callbacks as callbacks
    from gradalign import data as data
    from gradalign import datasets as datasets
    from gradalign import diagnostics as diagnostics
    from gradalign import gradients as gradients
    from gradalign import layers as layers
    from gradalign import losses as losses
    from gradalign import optimizers as optimizers
    from gradalign import training as training
    from gradalign._version import __version__ as __version__
    from gradalign.alignment import AdversarialAlignment as AdversarialAlignment
    from gradalign.alignment import CosineAlignment as CosineAlignment
    from gradalign.alignment import GREATAlignment as GREATAlignment
    from gradalign.alignment import MMDAlignment as MMDAlignment
    from gradalign.alignment import MomentAlignment as MomentAlignment
    from gradalign.diagnostics import check_second_order as check_second_order
    from gradalign.diagnostics import probe as probe
    from gradalign.errors import GradAlignWarning as GradAlignWarning
    from gradalign.errors import UserError as UserError
    from gradalign.gradients import GradientReversal as GradientReversal
    from gradalign.gradients import reverse_gradient as reverse_gradient
    from gradalign.gradients import task_gradients as task_gradients
    from gradalign.layers import make_twice_differentiable as make_twice_differentiable
    from gradalign.multi_task_model import MultiTaskModel as MultiTaskModel

# The public surface: each name, and the module, or the module and the name in it, that it stands for.
_PUBLIC = {
    "AdversarialAlignment": "gradalign.alignment:AdversarialAlignment",
    "CosineAlignment": "gradalign.alignment:CosineAlignment",
    "GREATAlignment": "gradalign.alignment:GREATAlignment",
    "GradAlignWarning": "gradalign.errors:GradAlignWarning",
    "GradientReversal": "gradalign.gradients:GradientReversal",
    "MMDAlignment": "gradalign.alignment:MMDAlignment",
    "MomentAlignment": "gradalign.alignment:MomentAlignment",
    "MultiTaskModel": "gradalign.multi_task_model:MultiTaskModel",
    "UserError": "gradalign.errors:UserError",
    "__version__": "gradalign._version:__version__",
    "alignment": "gradalign.alignment",
    "architectures": "gradalign.architectures",
    "callbacks": "gradalign.callbacks",
    "check_second_order": "gradalign.diagnostics:check_second_order",
    "data": "gradalign.data",
    "datasets": "gradalign.datasets",
    "diagnostics": "gradalign.diagnostics",
    "gradients": "gradalign.gradients",
    "layers": "gradalign.layers",
    "losses": "gradalign.losses",
    "make_twice_differentiable": "gradalign.layers:make_twice_differentiable",
    "optimizers": "gradalign.optimizers",
    "probe": "gradalign.diagnostics:probe",
    "reverse_gradient": "gradalign.gradients:reverse_gradient",
    "task_gradients": "gradalign.gradients:task_gradients",
    "training": "gradalign.training",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    """Load the public name that is asked for, once (PEP 562)."""
    if name not in _PUBLIC:
        from gradalign.errors import nearest

        raise AttributeError(f"module 'gradalign' has no attribute {name!r}.{nearest(name, _PUBLIC)}")
    module, _, member = _PUBLIC[name].partition(":")
    found = importlib.import_module(module)
    value = getattr(found, member) if member else found
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(__all__)


register_with_keras()
