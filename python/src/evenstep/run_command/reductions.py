"""How a loss depends on the samples of its batch, read from its graph of autograd before the backward pass.

Weights by local batches are right if a loss is a sum of PyTorch's own mean losses, times factors that do not depend on
the batch. Nothing between a loss and the model's output may mix samples. Every other operation is refused.
"""

import sys
from collections.abc import Collection, Sequence
from math import isclose, log2, prod
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from types import FrameType

#: A term of a loss: its function, the values for each sample, the other dimensions, and constant factors.
Term = tuple[Any, ...]

#: Marks the factors of PyTorch's own functions.
_OWN = "own"

#: Maximum number of callers of a backward pass in which Hugging Face's Trainer is looked for.
_FRAMES_MAX = 32

#: The divisor of losses that are sums over the items of all ranks.
ITEMS = "items of all ranks"

#: Operations that keep each value.
_SAME = ("ToCopy", "View", "ReshapeAlias", "Squeeze", "Unsqueeze", "Clone", "Alias", "UnsafeView", "Neg")

#: PyTorch's losses that are means by default. ``Mean`` of ``Abs`` is its L1 loss.
_LOSSES = ("NllLoss", "NllLoss2D", "MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy",
           "BinaryCrossEntropyWithLogits")  # fmt: skip

#: Operations between a loss and a model's output that keep samples apart, if they do not move or sum dimension 0.
_APART = ("ToCopy", "View", "ReshapeAlias", "UnsafeView", "Squeeze", "Clone", "Alias", "Neg", "Mul", "Div",
          "LogSoftmax", "Softmax", "LogSigmoid", "Sigmoid", "Tanh", "Slice", "Select", "Transpose", "Permute", "Sum1",
          "Mean1", "MaskedFill")  # fmt: skip

#: The last layers of a model, and what may be between them and their parameters.
_LAYERS, _OF_PARAMETERS = ("Addmm", "Mm", "Convolution"), ("T", "Transpose", "ToCopy")
_PARAMETER = "torch::autograd::AccumulateGrad"

#: Maximum number of operations above the reductions of a loss, and between one and the model's output.
_NODES_MAX = 256

#: A factor that may change, or that is on a GPU.
_ANY = "any"

#: The minimum scale of a GradScaler, a power of two, that is known as such.
_SCALE_MIN = 256.0


class UnknownLossError(Exception):
    """A loss of which it is unknown whether it is a mean over samples."""


def same(found: Sequence[Term], wanted: Sequence[Term]) -> bool:
    """Returns whether losses have the same terms; factors that are unknown equal all others."""
    return len(found) == len(wanted) and all(
        len(one) == len(other) and all(a == b or _ANY in (a, b) for a, b in zip(one, other, strict=True))
        for one, other in zip(found, wanted, strict=True)
    )


def terms(
    loss: Any,
    samples: int,
    suspects: Sequence[float] = (),
    items: float | None = None,
    *,
    outputs: Collection[Any] = (),
    waits: bool = True,
) -> list[Term]:
    """Returns the terms of a loss, each a mean over the batch, or all sums that :data:`ITEMS` divides.

    Two batches of different sizes have the same terms, if the loss is a mean over their samples.

    Args:
        loss: the tensor on which ``backward`` is called.
        samples: number of samples in the batch.
        suspects: factors that may depend on the size of the batch, because they equal a number of samples.
        items: the number of items of all ranks, such as tokens, if the loss is a sum over items divided by it.
        outputs: the nodes of the model's outputs. The layers of a model, too, end the way from a loss.
        waits: whether to read labels and factors that are on a GPU, which waits for it.

    Raises:
        UnknownLossError: the loss is not a sum of means over the batch, or it is unknown.
    """
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise UnknownLossError("gradients of several values are computed at once")
    found: list[Term] = []
    #: Nodes with the number of their output.
    open_nodes: list[tuple[Any, int, Term]] = [(loss.grad_fn, loss.output_nr, ())]
    for _ in range(_NODES_MAX):
        if not open_nodes:
            if len({ITEMS in term for term in found}) > 1:
                raise UnknownLossError("the loss adds a mean over samples to a mean over items")
            return found
        node, output, factors = open_nodes.pop()
        if node is None:
            continue
        name = _name(node)
        operands = _operands(node, name, output, factors)
        if operands is None and _is_product(node, name) and not _is_smoothing(node, name, factors):
            operands = [_scaled(node, name, factors, suspects, items, waits=waits)]
        if operands is not None:
            open_nodes += operands
            continue
        if ITEMS in factors:
            term = _sum(node, name)
        elif _is_smoothing(node, name, factors):
            term = _smoothing(node, samples)
        else:
            term = _mean(node, name, samples, waits=waits)
        found.append((*term, *factors, *_way(node, samples, outputs, waits=waits)))
    raise UnknownLossError(f"the loss has more than {_NODES_MAX} terms")


def _operands(node: Any, name: str, output: int, factors: Term) -> list[tuple[Any, int, Term]] | None:
    """Returns the operands of an operation on one value, with their factors; None for others."""
    edges = node.next_functions
    if name in ("Add", "Sub"):
        return [(*edge, factors) for edge in edges]
    if name == "_DDPSink":
        # The identity of all outputs of DistributedDataParallel, one of which is a loss.
        return [(*edges[output], factors)]
    if name == "Mul1":
        # A node of PyTorch's own functions: in scripts, a number becomes a tensor.
        return [(*edges[0], (*factors, _OWN, float(node._saved_other)))]  # noqa: SLF001  # Public in PyTorch.
    if name.rstrip("0123456789") in _SAME:
        return [(*edges[0], factors)]
    return None


def _is_product(node: Any, name: str) -> bool:
    """Returns whether an operation multiplies or divides by a constant."""
    return name in ("Mul", "Div") and sum(child is not None for child, _ in node.next_functions) == 1


def _scaled(
    node: Any, name: str, factors: Term, suspects: Sequence[float], items: float | None, *, waits: bool
) -> tuple[Any, int, Term]:
    """Returns the operand of a product with a constant."""
    constant, edge = _constant(node, name, waits=waits)
    if constant is None:
        return (*edge, (*factors, name, _ANY))
    if name == "Div" and items is not None and constant == items:
        return (*edge, (*factors, ITEMS))
    if any(isclose(constant, suspect, rel_tol=1e-6) for suspect in suspects):
        raise UnknownLossError(
            f"the loss is multiplied or divided by {constant:g}, which may be a number of samples of the batch"
        )
    # The scale of a GradScaler changes.
    is_scale = not factors and name == "Mul" and constant >= _SCALE_MIN and log2(constant).is_integer()
    return (*edge, (*factors, name, _ANY if is_scale else constant))


def _is_smoothing(node: Any, name: str, factors: Term) -> bool:
    """Returns whether a division is a part of PyTorch's label smoothing."""
    inner = node.next_functions[0][0] if name == "Div" and _OWN in factors else None
    return inner is not None and _name(inner) == "Sum"


def _name(node: Any) -> str:
    """Returns the operation of a node, with its variant if it has several: ``MulBackward1`` is ``Mul1``."""
    operation, _, variant = str(node.name()).rpartition("Backward")
    return operation + ("" if variant == "0" else variant)


def _constant(node: Any, name: str, *, waits: bool) -> tuple[float | None, tuple[Any, int]]:
    """Returns the constant of a product, None if a GPU has it, and the edge to its operand."""
    is_first = node.next_functions[0][0] is not None
    constant = node._saved_other if is_first else node._saved_self if name == "Mul" else None  # noqa: SLF001
    if constant is None or constant.numel() != 1:
        raise UnknownLossError(f"the loss is computed by {node.name()} of several values")
    is_read = waits or constant.device.type == "cpu"
    return float(constant) if is_read else None, node.next_functions[0 if is_first else 1]


def _sum(node: Any, name: str) -> Term:
    """Returns the term of a sum over items."""
    if name not in _LOSSES or node._saved_reduction != 2:  # noqa: SLF001
        raise UnknownLossError(f"the loss is divided by the items of all ranks, and computed by {node.name()}")
    return name, *node._saved_self.shape[1:]  # noqa: SLF001


def _smoothing(node: Any, samples: int) -> Term:
    """Returns the term of label smoothing in PyTorch's cross entropy."""
    shape = tuple(map(int, node.next_functions[0][0]._saved_self_sym_sizes))  # noqa: SLF001
    divisor = node._saved_other  # noqa: SLF001
    # On a GPU, it is the number of labels that the other term of the cross entropy checks.
    is_known = divisor is not None and (divisor.device.type != "cpu" or float(divisor) == prod(shape))
    if not is_known or not shape or shape[0] % samples:
        raise UnknownLossError("the label smoothing of the loss is divided by another number than its samples")
    return "Smoothing", shape[0] // samples, *shape[1:]


def _mean(node: Any, name: str, samples: int, *, waits: bool) -> Term:
    """Returns the term of one of PyTorch's mean losses."""
    if name == "Mean" and _is(node.next_functions[0][0], "Abs") and _is(_below(_below(node)), "Sub"):
        shape = tuple(map(int, node._saved_self_sym_sizes))  # noqa: SLF001
    elif name in _LOSSES:
        if node._saved_reduction != 1:  # noqa: SLF001
            raise UnknownLossError(f"the loss ({node.name()}) is not a mean over samples, but a sum")
        if getattr(node, "_saved_weight", None) is not None:
            raise UnknownLossError("the loss has weights of classes or samples, so it may be no mean over samples")
        shape = tuple(node._saved_self.shape)  # noqa: SLF001
        if name.startswith("NllLoss"):
            _check_labels(node, waits=waits)
    else:
        raise UnknownLossError(
            f"the loss is computed by {node.name()}, so it is unknown whether it is a mean over samples: PyTorch's own "
            "losses are known"
        )
    if not shape or shape[0] % samples:
        raise UnknownLossError(f"the loss is a mean over values of shape {list(shape)}, not over {samples} samples")
    return name, shape[0] // samples, *shape[1:]


def _check_labels(node: Any, *, waits: bool) -> None:
    """Checks that a cross entropy divides by the number of samples."""
    labels = node._saved_target  # noqa: SLF001
    # PyTorch shows the number without its sign.
    ignored = (node._saved_ignore_index + 2**63) % 2**64 - 2**63  # noqa: SLF001
    if (waits or labels.device.type == "cpu") and bool((labels == ignored).any()):
        raise UnknownLossError(
            "the cross entropy ignores some labels, so it is a mean over the others, not over samples"
        )


def _way(loss: Any, samples: int, outputs: Collection[Any], *, waits: bool) -> Term:
    """Returns the factors between a loss and the outputs of the model, and checks that samples are kept apart."""
    factors: list[Any] = []
    open_nodes = [edge for edge, _ in loss.next_functions]
    for _ in range(_NODES_MAX):
        if not open_nodes:
            return tuple(factors)
        node = open_nodes.pop()
        if node is None or node in outputs or _is_layer(node):
            continue
        name = _name(node)
        if name == _PARAMETER:
            raise UnknownLossError("a term of the loss is of parameters, not of the model's output")
        is_of_loss = (name in ("Abs", "Sub") and _is(loss, "Mean")) or (name == "Sum" and _is(loss, "Div"))
        known = name if name in _APART else name.rstrip("0123456789")
        if not is_of_loss and (known not in _APART or _moves_samples(node, known, samples)):
            raise UnknownLossError(
                f"{node.name()} is between the loss and the model's output, and may mix the samples of a batch"
            )
        if known in ("Mul", "Div") and not is_of_loss:
            constant, edge = _constant(node, known, waits=waits)
            factors += [known, _ANY if constant is None else constant]
            open_nodes.append(edge[0])
        else:
            open_nodes += [edge for edge, _ in node.next_functions]
    raise UnknownLossError(f"more than {_NODES_MAX} operations are between the loss and the model's output")


def _moves_samples(node: Any, name: str, samples: int) -> bool:
    """Returns whether an operation moves, sums or cuts dimension 0, or is a product of two results."""
    moves = False
    if name in ("Mul", "Div"):
        moves = not _is_product(node, name)
    elif name in ("View", "ReshapeAlias", "UnsafeView"):
        shape = node._saved_self_sym_sizes  # noqa: SLF001
        moves = not len(shape) or int(shape[0]) % samples != 0
    elif name in ("LogSoftmax", "Softmax"):
        shape = node._saved_result.shape  # noqa: SLF001
        moves = not shape or shape[0] % samples != 0 or _has_first([node._saved_dim], len(shape))  # noqa: SLF001
    elif name == "Permute":
        moves = int(node._saved_dims[0]) != 0  # noqa: SLF001
    elif name == "Transpose":
        # Without the number of dimensions, -2 may be the first one.
        moves = _has_first([node._saved_dim0, node._saved_dim1], 2)  # noqa: SLF001
    elif name == "Slice" and node._saved_start == 0 and node._saved_step == 1 and node._saved_end == 2**63 - 1:  # noqa: SLF001
        # Older versions of PyTorch have a node for `:`.
        moves = False
    elif name in ("Sum1", "Mean1", "Slice", "Select", "Squeeze"):
        dims = getattr(node, "_saved_dim", ())
        moves = _has_first([*dims] if isinstance(dims, tuple) else [dims], len(node._saved_self_sym_sizes))  # noqa: SLF001
    return moves


def _has_first(dims: Sequence[int], count: int) -> bool:
    """Returns whether dimension 0 is among dimensions, which PyTorch shows without their sign, or none is named."""
    return not dims or any((dim + 2**63) % 2**64 - 2**63 in (0, -count) for dim in dims)


def _is_layer(node: Any) -> bool:
    """Returns whether an operation is a layer with parameters."""
    if _name(node) not in _LAYERS:
        return False
    for child, _ in node.next_functions:
        at = child
        while at is not None and _name(at) in _OF_PARAMETERS:
            at = _below(at)
        if at is not None and _name(at) == _PARAMETER:
            return True
    return False


def _below(node: Any) -> Any:
    return node.next_functions[0][0]


def _is(node: Any, name: str) -> bool:
    return node is not None and _name(node) == name


def items_over_ranks() -> float | None:
    """Returns the number of items of all ranks by which a Trainer divides the loss whose backward pass begins.

    None if no Trainer computes it, or if its loss is divided by another number.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # The only way to see who calls.
    for _ in range(_FRAMES_MAX):
        if frame is None:
            return None
        if frame.f_code.co_name == "training_step" and frame.f_globals.get("__name__") == "transformers.trainer":
            trainer, items = frame.f_locals["self"], frame.f_locals.get("num_items_in_batch")
            counts_all = trainer.args.average_tokens_across_devices and trainer.args.gradient_accumulation_steps == 1
            return float(items) if items is not None and counts_all else None
        frame = frame.f_back
    return None
