"""From a config to a run folder: train, evaluate, predict, export, check.

Each module holds one command's work and can be called from Python as well; `gradalign.cli` only parses its
arguments and prints. `gradalign.training.config` imports no TensorFlow, so a wrong config is refused at once.

>>> from gradalign.training.config_file import load_config
>>> load_config("census-income", ["training.epochs=2"]).training.epochs
2
"""
