"""Cuts a model into blocks: successive layers with the same shares. torch.fx traces what is between layers.

A block with many parameters is cut again, so that its gradient sums overlap with its own backward pass.
"""

import inspect
import operator
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import fx, nn

from evenstep.burst_parallel.plan import Plan, PlannedLayer
from evenstep.errors import UnsupportedError

#: Bytes of parameters from which layers with the same shares are cut again: DDP's default for its sums.
SUM_BYTES = 25 << 20

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True, slots=True)
class Piece:
    """A block: the layers from ``first`` to ``last`` of the plan, as a module from one tensor to one tensor."""

    first: str
    last: str
    shares: tuple[int, ...]
    module: fx.GraphModule


def opened_modules(net: nn.Module, plan: Plan) -> dict[str, nn.Module]:
    """Returns the modules that contain planned layers, by path.

    Raises:
        UnsupportedError: the plan has a layer that the model does not have, or such a module has hooks.
    """
    opened = {"": net}
    for layer in plan.layers:
        path, kind, _ = _parts(layer.name)
        try:
            module = net.get_submodule(path)
        except AttributeError:
            module = None
        if module is None or module is net or (kind and type(module).__name__ != kind):
            found = "has no module of this name" if module is None else f"has {type(module).__name__} there"
            raise UnsupportedError(
                f"plan: layer {layer.name!r} is unknown: {type(net).__name__} {found}. Plan from a profile of this "
                "model. A name is the path of a module and its type, which may be absent: 'features.0 Conv2d'"
            )
        steps = path.split(".")
        for depth in range(1, len(steps)):
            container = ".".join(steps[:depth])
            opened[container] = net.get_submodule(container)
    for path, module in opened.items():
        slots = (module.__dict__.get(name) for name in _HOOKS)
        if any(slots):
            raise UnsupportedError(
                f"{path} {type(module).__name__}".strip() + " has hooks, which would not run, because it contains "
                "planned layers: register them on a layer, or on the module that evenstep.burst returns"
            )
    return opened


def cut(net: nn.Module, plan: Plan, opened: dict[str, nn.Module]) -> list[Piece]:
    """Returns the blocks of a model.

    Raises:
        UnsupportedError: the model is no chain of the planned layers; the message names the module.
    """
    graph = _traced(net, opened)
    given, output = _ends(net, graph)
    layer_of = _assigned(net, graph, plan.layers)
    starts = _starts(net, plan.layers, {given: -1, **layer_of})
    block_of_layer = [sum(start <= at for start in starts) for at in range(len(plan.layers))]
    count = block_of_layer[-1] + 1
    block_of = {given: -1, **{node: block_of_layer[layer] for node, layer in layer_of.items()}, output: count}
    last_use = {node: max((block_of[user] for user in node.users), default=-1) for node in block_of}
    pieces: list[Piece] = []
    read = given
    for block in range(count):
        names = [layer.name for layer, at in zip(plan.layers, block_of_layer, strict=True) if at == block]
        passed = [node for node in block_of if block_of[node] <= block < last_use[node]]
        if [block_of[node] for node in passed] != [block]:
            raise UnsupportedError(
                f"plan: layer {names[-1]!r} and the next layer cannot have different samples: only the output of the "
                f"former may pass between them, not {', '.join(map(str, passed))}. Give all layers of a branch the "
                "same samples"
            )
        nodes = [node for node, at in block_of.items() if at == block]
        shares = plan.layers[block_of_layer.index(block)].shares
        pieces.append(Piece(names[0], names[-1], shares, _module(net, nodes, read, passed[0])))
        read = passed[0]
    _check_shared(pieces)
    run = {parameter for piece in pieces for parameter in piece.module.parameters()}
    if unread := [name for name, own in net.named_parameters() if own.requires_grad and own not in run]:
        raise UnsupportedError(
            f"{unread[0]} is in no layer of the plan: if only the loss reads it, move this into a layer; if nothing "
            "reads it, freeze it with requires_grad_(False)"
        )
    return pieces


def _starts(net: nn.Module, layers: Sequence[PlannedLayer], layer_of: dict[fx.Node, int]) -> list[int]:
    """Returns the first layers of blocks, without the first block.

    A sum begins when all gradients of a block exist, so layers are gathered from the last one to the first.
    """
    starts = {at for at, (before, layer) in enumerate(pairwise(layers), 1) if before.shares != layer.shares}
    layers_of: dict[torch.Tensor, list[int]] = {}
    for node, at in layer_of.items():
        values = [*net.get_submodule(str(node.target)).parameters()] if node.op == "call_module" else []
        read = (str(source.target) for source in node.all_input_nodes if source.op == "get_attr")
        for value in (*values, *(operator.attrgetter(name)(net) for name in read)):
            layers_of.setdefault(value, []).append(at)
    sizes = Counter[int]()
    for value, own in layers_of.items():
        sizes[min(own)] += value.nbytes

    def separate(at: int) -> bool:
        passing = [
            own
            for node, own in layer_of.items()
            if own < at and any(layer_of.get(user, len(layers)) >= at for user in node.users)
        ]
        return passing == [at - 1] and not any(min(own) < at <= max(own) for own in layers_of.values())

    filled = 0
    for at in range(len(layers) - 1, 0, -1):
        filled += sizes[at]
        if at not in starts and filled >= SUM_BYTES and separate(at):
            starts.add(at)
        if at in starts:
            filled = 0
    return sorted(starts)


def _parts(name: str) -> tuple[str, str, int]:
    """Returns path, type and number of a layer's name, as in profiles: ``features.1 ReLU #2``."""
    path, _, rest = name.partition(" ")
    kind, _, number = rest.partition("#")
    return path, kind.strip(), int(number) if number.isdecimal() else 1


class _Tracer(fx.Tracer):
    """Opens the containers of planned layers only."""

    def __init__(self, opened: dict[str, nn.Module]) -> None:
        super().__init__()
        self.opened, self.place, self.modes, self.drawn = opened, "", _modes(), _random_state()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        del m
        return module_qualified_name not in self.opened

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        path, outer = self.path_of_module(m), self.place
        self.place = path
        if path in self.opened and isinstance(m, nn.TransformerEncoder):
            made = _encoder(m, args, kwargs)
        else:
            made = super().call_module(m, forward, args, kwargs)
        # After an error it remains the innermost module.
        self.place = outer
        return made

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if _modes() != self.modes:
            raise UnsupportedError("it changes the mode of autograd or autocast between layers")
        if _random_state() != self.drawn:
            raise UnsupportedError("it draws random numbers between layers, which would be the same in all iterations")
        return super().create_node(*args, **kwargs)


def _encoder(encoder: nn.TransformerEncoder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls the layers of PyTorch's encoder, whose own forward pass decides by values."""
    if len(args) != 1 or any(value is not None for value in kwargs.values()):
        raise UnsupportedError("its layers get masks")
    made = args[0]
    for layer in encoder.layers:
        made = layer(made)
    return made if encoder.norm is None else encoder.norm(made)


def _random_state() -> list[Any]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [random.getstate(), *(state.numpy().tobytes() for state in (torch.get_rng_state(), *cuda))]


def _modes() -> tuple[bool, ...]:
    autocast = (torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *autocast)


def _traced(net: nn.Module, opened: dict[str, nn.Module]) -> fx.Graph:
    """Returns the graph of the model. Arguments with a default have it."""
    parameters = inspect.signature(net.forward).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}
    tracer = _Tracer(opened)
    try:
        graph = tracer.trace(net, defaults or None)
    except Exception as error:
        place = f"{tracer.place} {type(opened.get(tracer.place, net)).__name__}".strip()
        raise UnsupportedError(
            f"{place} cannot be cut: {error}. Make it one layer of the plan, or move this computation into a module "
            "with one input and one output tensor, which is a layer"
        ) from error
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    extra = set(inputs[1:]) if defaults else set()
    # They only compare an argument with its default.
    for node in graph.nodes:
        extra |= {node} if extra & {*node.all_input_nodes} else set()
    for node in reversed(graph.nodes):
        if node in extra:
            graph.erase_node(node)
    return graph


def _ends(net: nn.Module, graph: fx.Graph) -> tuple[fx.Node, fx.Node]:
    """Returns input and output of a graph."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    output = next(node for node in graph.nodes if node.op == "output")
    if len(inputs) != 1 or str(inputs[0].target).startswith("*") or not isinstance(output.args[0], fx.Node):
        raise UnsupportedError(
            f"{type(net).__name__} cannot be cut: it must have one input tensor and one output tensor, not inputs "
            f"{', '.join(str(node.target) for node in inputs)} and the output {output.args[0]}"
        )
    return inputs[0], output


def _assigned(net: nn.Module, graph: fx.Graph, layers: Sequence[PlannedLayer]) -> dict[fx.Node, int]:
    """Returns the number of the layer of each node. Computation between layers belongs to the one before it.

    Parameters and buffers that are read directly belong to none.
    """
    planned = [(path, number) for path, _, number in (_parts(layer.name) for layer in layers)]
    known = set(planned)
    calls: Counter[str] = Counter()
    layer_of: dict[fx.Node, int] = {}
    at = -1
    for node in graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        if node.op == "call_module":
            path = str(node.target)
            calls[path] += 1
            module = net.get_submodule(path)
            if (path, calls[path]) in known:
                at += 1
                if planned[at] != (path, calls[path]):
                    raise UnsupportedError(
                        f"plan: {type(net).__name__} calls {path} before layer {layers[at].name!r}: each layer must be "
                        "called, in the order of the plan"
                    )
            elif any(True for _ in module.parameters()):
                raise UnsupportedError(
                    f"plan: call {calls[path]} of {path} {type(module).__name__}, which has parameters, is no layer: a "
                    "module with parameters must be called once, and be a layer or inside of one"
                )
        layer_of[node] = max(at, 0)
    if at + 1 < len(layers):
        raise UnsupportedError(f"plan: layer {layers[at + 1].name!r} is not called by {type(net).__name__}")
    return layer_of


def _module(net: nn.Module, nodes: Sequence[fx.Node], read: fx.Node, made: fx.Node) -> fx.GraphModule:
    graph = fx.Graph()
    copies = {read: graph.placeholder("x")}

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:
            copies[node] = graph.node_copy(node, copied)
        return copies[node]

    for node in nodes:
        copied(node)
    graph.output(copies[made])
    return fx.GraphModule(net, graph, "Block")


def _check_shared(pieces: Sequence[Piece]) -> None:
    """Checks modules and parameters.

    Raises:
        UnsupportedError: blocks share parameters, or a module has samples elsewhere or on other ranks.
    """
    owners: dict[nn.Parameter, str] = {}
    for piece in pieces:
        for name, parameter in piece.module.named_parameters():
            owner = owners.setdefault(parameter, piece.first)
            if owner != piece.first:
                raise UnsupportedError(
                    f"{name} is shared by the blocks of layers {owner!r} and {piece.first!r}: give these layers, and "
                    "those between them, the same samples"
                )
        for name, module in piece.module.named_modules():
            if isinstance(module, nn.SyncBatchNorm):
                raise UnsupportedError(
                    f"{name} is SyncBatchNorm, which waits for ranks that do not run the layer: use BatchNorm, which "
                    "normalizes over the samples of a rank"
                )
        # Inside of another layer, samples may be along another axis.
        for node in piece.module.graph.nodes:
            called = piece.module.get_submodule(node.target) if node.op == "call_module" else None
            first = called.layers[0] if isinstance(called, nn.TransformerEncoder) else called
            if isinstance(first, nn.TransformerEncoderLayer) and not first.self_attn.batch_first:
                raise UnsupportedError(f"{node.target} does not have samples first: create it with batch_first=True")
