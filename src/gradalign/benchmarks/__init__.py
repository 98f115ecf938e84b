"""What a training step costs: `gradalign bench` measures it beside a plain step, other ways to write it, and PyTorch.

A *case* is a model with its batches; a *row* is one way of training that model. All rows of a case run in one process,
in turns of a few steps and in an order that changes from round to round, so that whatever slows the machine for a while
slows all of them; what is compared are the ratios within a round, and of these the median.
"""
