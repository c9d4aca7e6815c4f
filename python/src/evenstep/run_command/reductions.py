"""How a loss depends on the samples of its batch, read from its graph of autograd before the backward pass.

Weights by local batches are right if a loss is a sum of means over the batch, times factors that do not depend on the
batch. PyTorch keeps the reduction, the shapes and the labels of a loss in its graph, up to its last reduction.
"""

from collections.abc import Sequence
from math import isclose, log2, prod
from typing import Any

import torch

#: A term of a loss: its function, the values for each sample, the other dimensions, and constant factors.
Term = tuple[Any, ...]

#: Marks the factors of PyTorch's own functions.
_OWN = "own"

#: The divisor of losses that are sums over the items of all ranks.
ITEMS = "items of all ranks"

#: Operations on one value that keep it.
_SAME = ("ToCopy", "View", "ReshapeAlias", "Squeeze", "Unsqueeze", "Clone", "Alias", "UnsafeView", "Neg")

#: Maximum number of operations above the reductions of a loss.
_NODES_MAX = 256

#: The minimum scale of a GradScaler, a power of two, that is known as such.
_SCALE_MIN = 256.0

#: Minimum number of labels that cannot be equal, or 0, 1, 2, .. by chance in successive batches.
_CONTRASTIVE_MIN = 4


class UnknownLossError(Exception):
    """A loss of which it is unknown whether it is a mean over samples."""


def terms(loss: Any, samples: int, suspects: Sequence[float] = (), items: float | None = None) -> list[Term]:
    """Returns the terms of a loss, each a mean over the batch, or all sums that :data:`ITEMS` divides.

    Two batches of different sizes have the same terms, if the loss is a mean over their samples.

    Args:
        loss: the tensor on which ``backward`` is called.
        samples: number of samples in the batch.
        items: the number of items of all ranks, such as tokens, if the loss is a sum over items divided by it.
        suspects: factors that may depend on the size of the batch, because they equal a number of samples.

    Raises:
        UnknownLossError: the loss is neither a sum of means over the batch, or it is unknown.
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
            operands = [_scaled(node, name, factors, suspects, items)]
        if operands is not None:
            open_nodes += operands
        elif ITEMS in factors:
            found.append((*_sum(node, name), *factors))
        elif _is_smoothing(node, name, factors):
            found.append((*_smoothing(node, samples), *factors))
        else:
            found.append((*_mean(node, name, samples, compares=bool(suspects)), *factors))
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
    node: Any, name: str, factors: Term, suspects: Sequence[float], items: float | None
) -> tuple[Any, int, Term]:
    """Returns the operand of a product with a constant."""
    constant, edge = _constant(node, name)
    if name == "Div" and items is not None and constant == items:
        return (*edge, (*factors, ITEMS))
    if any(isclose(constant, suspect, rel_tol=1e-6) for suspect in suspects):
        raise UnknownLossError(
            f"the loss is multiplied or divided by {constant:g}, which may be a number of samples of the batch"
        )
    # The scale of a GradScaler changes.
    is_scale = not factors and name == "Mul" and constant >= _SCALE_MIN and log2(constant).is_integer()
    return (*edge, ("scale",) if is_scale else (*factors, name, constant))


def _is_smoothing(node: Any, name: str, factors: Term) -> bool:
    """Returns whether a division is a part of PyTorch's label smoothing."""
    inner = node.next_functions[0][0] if name == "Div" and _OWN in factors else None
    return inner is not None and _name(inner) == "Sum"


def _name(node: Any) -> str:
    """Returns the operation of a node, with its variant if it has several: ``MulBackward1`` is ``Mul1``."""
    operation, _, variant = str(node.name()).rpartition("Backward")
    return (operation or str(node.name())) + ("" if variant == "0" else variant)


def _constant(node: Any, name: str) -> tuple[float, tuple[Any, int]]:
    """Returns the constant of a product, and the edge to its operand."""
    is_first = node.next_functions[0][0] is not None
    constant = node._saved_other if is_first else node._saved_self if name == "Mul" else None  # noqa: SLF001
    if constant is None or constant.numel() != 1:
        raise UnknownLossError(f"the loss is computed by {node.name()} of several values")
    return float(constant), node.next_functions[0 if is_first else 1]


def _sum(node: Any, name: str) -> Term:
    """Returns the term of a sum over items."""
    if getattr(node, "_saved_reduction", None) != 2:
        raise UnknownLossError(f"the loss is divided by the items of all ranks, and computed by {node.name()}")
    return name, *node._saved_self.shape[1:]  # noqa: SLF001


def _smoothing(node: Any, samples: int) -> Term:
    """Returns the term of label smoothing in PyTorch's cross entropy."""
    shape = tuple(map(int, node.next_functions[0][0]._saved_self_sym_sizes))  # noqa: SLF001
    divisor = node._saved_other  # noqa: SLF001
    if divisor is None or float(divisor) != prod(shape) or not shape or shape[0] % samples:
        raise UnknownLossError("the label smoothing of the loss is divided by another number than its samples")
    return "Smoothing", shape[0] // samples, *shape[1:]


def _mean(node: Any, name: str, samples: int, *, compares: bool) -> Term:
    """Returns the term of a reduction; ``compares`` looks at labels for a loss that compares samples."""
    if name in ("Mean", "Mean1"):
        shape = tuple(map(int, node._saved_self_sym_sizes))  # noqa: SLF001
    elif name == "Div1" and (inner := _summed(node.next_functions[0][0])) is not None:
        # PyTorch's cross entropy with probabilities. Divisions of scripts have other nodes.
        shape = tuple(map(int, inner._saved_self_sym_sizes))  # noqa: SLF001
        if len(shape) < 2 or float(node._saved_other) * shape[1] != prod(shape):  # noqa: SLF001
            raise UnknownLossError("the loss is divided by another number than its samples")
    elif hasattr(node, "_saved_reduction"):
        if node._saved_reduction != 1:  # noqa: SLF001
            raise UnknownLossError(f"the loss ({node.name()}) is not a mean over samples, but a sum")
        shape = tuple(node._saved_self.shape)  # noqa: SLF001
        if name.startswith("NllLoss"):
            _check_labels(node, shape, samples if compares else 0)
    elif name == "Sum":
        raise UnknownLossError("the loss is a sum with an unknown divisor")
    else:
        raise UnknownLossError(f"the loss is computed by {node.name()}, so it is unknown whether it is a mean")
    if not shape or shape[0] % samples:
        raise UnknownLossError(f"the loss is a mean over values of shape {list(shape)}, not over {samples} samples")
    return name, shape[0] // samples, *shape[1:]


def _summed(node: Any) -> Any:
    """Returns the sum whose negative a node is."""
    inner = node.next_functions[0][0] if node is not None and _name(node) == "Neg" else None
    return inner if inner is not None and _name(inner) == "Sum" else None


def _check_labels(node: Any, shape: Sequence[int], samples: int) -> None:
    """Checks that a cross entropy divides by the number of samples, and compares no samples with each other."""
    labels = node._saved_target  # noqa: SLF001
    if node._saved_weight is not None:  # noqa: SLF001
        raise UnknownLossError("the cross entropy has class weights, so it is no mean over samples")
    # PyTorch shows the number without its sign.
    ignored = (node._saved_ignore_index + 2**63) % 2**64 - 2**63  # noqa: SLF001
    if bool((labels == ignored).any()):
        raise UnknownLossError(
            "the cross entropy ignores some labels, so it is a mean over the others, not over samples"
        )
    flat = labels.flatten()
    if samples >= _CONTRASTIVE_MIN and len(shape) == 2:
        steps = flat[1:] - flat[:-1]
        if bool((steps == 1).all()) or (shape[1] >= shape[0] - 1 and bool((steps == 0).all())):
            raise UnknownLossError("the loss compares the samples of a batch with each other (it is contrastive)")
