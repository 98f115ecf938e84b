"""Shared and private embeddings: each task's tower sees the shared ones and its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import keras

from gradalign.layers.chained_logit import ChainedLogit
from gradalign.layers.field_embedding import FieldEmbedding
from gradalign.layers.fields import Field, MultiValued, Numeric, check_fields, is_input_name, is_output_name
from gradalign.layers.tower import Activation, Tower, check_tower


def shared_private(
    fields: Mapping[str, Field],
    tasks: Iterable[str],
    *,
    shared_dim: int = 8,
    private_dim: int = 4,
    towers: Sequence[int] = (64, 32),
    activation: Activation = "gelu",
    dropout: float = 0.0,
    chain: Mapping[str, str] | None = None,
) -> keras.Model:
    """Return a model in which every field has one shared embedding and one private embedding per task.

    With `s = shared_embedding(x)`, shape (B, F * shared_dim), and `p_t = private_embedding_t(x)`, shape
    (B, F * private_dim), task t predicts `sigmoid(tower_t([s, p_t]))`.

    Layers, by name: one input per field, "shared_embedding", "private_embedding_<task>" (where `private_dim` > 0),
    the `Tower` "tower_<task>", which gives the logit, and the output layer "<task>"; tasks of a chain that come after
    another also have "<task>_chain".

    Args:
        fields: field name -> field, F of them; the model's inputs carry the same names. Ids are int32 of shape (B,);
            numbers are floats of shape (B,); multi-valued ids are (B, L), padded or ragged.
        tasks: task names, in the order of the outputs; any iterable, so a dict keyed by task will do.
        shared_dim: width of a shared embedding.
        private_dim: width of a private embedding; 0 for none.
        towers: widths of the hidden layers of each tower.
        activation: of the hidden layers; the default has a second derivative, which the alignment needs.
        dropout: in the hidden layers, in [0, 1).
        chain: task -> the task that has to happen first. `{"buy": "click"}` makes the output "buy" the probability of a
            click times what buy's tower says of a clicked row, computed from logits (`ChainedLogit`).

    Returns:
        A functional Keras model: dict of inputs -> {task: probability of shape (B, 1)}.

    Raises:
        ValueError: a bad argument, a task named twice, a name that is both a field and a task, or a chain that names an
            unknown task or comes back to itself.
        TypeError: `tasks` is a string, or a field is not a field.

    Example:

    >>> from gradalign.layers import Categorical
    >>> model = shared_private({"city": Categorical(5)}, ["click", "buy"], shared_dim=2, private_dim=1, towers=(4,))
    >>> {task: probability.shape for task, probability in model.output.items()}
    {'click': (None, 1), 'buy': (None, 1)}
    """
    fields = check_fields(fields)
    names = _check_tasks(tasks)
    check_tower(towers, dropout)
    _check_dim("shared_dim", shared_dim, 1)
    _check_dim("private_dim", private_dim, 0)
    chain = _check_chain(chain or {}, names)
    _check_layer_names(fields, names, chain)

    inputs = {name: _input(name, field) for name, field in fields.items()}
    shared = FieldEmbedding(fields, shared_dim, name="shared_embedding")(inputs)
    outputs = {}
    for task in names:
        x = [shared]
        if private_dim:
            x.append(FieldEmbedding(fields, private_dim, name=f"private_embedding_{task}")(inputs))
        tower = Tower(towers, activation, dropout, output_activation=None, name=f"tower_{task}")
        outputs[task] = tower(x if private_dim else shared)
    outputs = _probabilities(outputs, chain)
    return keras.Model(inputs, outputs, name="shared_private")


def _probabilities(outputs: Mapping[str, keras.KerasTensor], chain: Mapping[str, str]) -> dict[str, keras.KerasTensor]:
    """Return each task's probability, from the logits of its tower and of those that its chain names."""
    logits: dict[str, keras.KerasTensor] = {}

    def logit(task: str) -> keras.KerasTensor:
        if task not in logits:
            logits[task] = outputs[task]
            if task in chain:
                logits[task] = ChainedLogit(name=f"{task}_chain")([logit(chain[task]), outputs[task]])
        return logits[task]

    for task in outputs:
        logit(task)
    return {
        task: keras.layers.Activation("sigmoid", name=task, dtype=logits[task].dtype)(logits[task]) for task in outputs
    }


def _input(name: str, field: Field) -> keras.KerasTensor:
    if isinstance(field, Numeric):
        return keras.Input(shape=(), name=name, dtype=keras.config.floatx())
    return keras.Input(
        shape=(None,) if isinstance(field, MultiValued) else (),
        name=name,
        dtype="int32",
    )


def _check_tasks(tasks: Iterable[str]) -> list[str]:
    if isinstance(tasks, str):
        raise TypeError(f'`tasks` must be a list of task names, received the string "{tasks}".')
    names = list(tasks)
    if not names:
        raise ValueError(f"`tasks` must name at least one task, received {tasks!r}.")
    for name in names:
        if not isinstance(name, str) or not is_output_name(name):
            raise ValueError(
                f'The name of a task may hold letters from A to Z, digits, "_", "." and "-", received {name!r}.'
            )
        if names.count(name) > 1:
            raise ValueError(f'Task "{name}" is named twice.')
    return names


def _check_dim(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"`{name}` must be a whole number of at least {least}, received {value!r}.")


def _check_chain(chain: Mapping[str, str], tasks: Sequence[str]) -> dict[str, str]:
    for task, above in chain.items():
        for name in (task, above):
            if name not in tasks:
                raise ValueError(f'`chain` names "{name}", which is no task; the tasks are {", ".join(tasks)}.')
        seen = [task]
        while seen[-1] in chain:
            seen.append(chain[seen[-1]])
            if seen[-1] in seen[:-1]:
                raise ValueError(f"`chain` comes back to itself: {' -> '.join(seen)}.")
    return dict(chain)


def _check_layer_names(fields: Mapping[str, Field], tasks: Sequence[str], chain: Mapping[str, str]) -> None:
    """A Keras model's layers have unique names; inputs are named by field and outputs by task."""
    taken = {"shared_embedding"}
    for task in tasks:
        taken |= {f"private_embedding_{task}", f"tower_{task}"}
    taken |= {f"{task}_chain" for task in chain}
    for task in tasks:
        if task in fields:
            raise ValueError(f'"{task}" is both a field and a task; rename one of them.')
        if task in taken:
            raise ValueError(f'"{task}" is the name of one of the model\'s layers; rename the task.')
    for name in fields:
        if not is_input_name(name):
            raise ValueError(
                f'"{name}" cannot be the name of an input of a served model; use letters from A to Z, digits and "_", '
                f"a letter first, and no word that Python reserves."
            )
        if name in taken:
            raise ValueError(f'"{name}" is the name of one of the model\'s layers; rename the field.')
