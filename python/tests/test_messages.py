"""Messages survive the conversion to JSON and back, and errors name the invalid field."""

import json
import pickle
from dataclasses import MISSING, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import SettingError
from evenstep.wire import messages
from evenstep.wire.codec import Message
from evenstep.wire.errors import UnusableError
from evenstep.wire.messages import (
    AllocateResponse,
    Allocation,
    Decision,
    JobSpec,
    JoinRequest,
    OptimizerInstruction,
    Problem,
    Ramp,
    Tail,
    WorkerReport,
)

MESSAGES: list[type[Message]] = [
    kind
    for kind in vars(messages).values()
    if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
]

ANSWER: dict[str, Any] = {
    "job_id": "job",
    "generation": 3,
    "iteration": 17,
    "global_batch": 20,
    "allocations": [
        {
            "worker": "a/0",
            "rank": 0,
            "local_batch": 10,
            "offset": 0,
            "gradient_weight": 0.5,
            "pool": 0,
            "planned_batch": 12,
        },
        {"worker": "b/0", "rank": 1, "local_batch": 4, "offset": 10, "gradient_weight": 0.2},
    ],
    "tail": {"offset": 14, "chunks": [4, 2], "pools": [2]},
    "optimizer": {
        "rule": "dynamic_sgd",
        "lr_multiplier": 1.5,
        "momentum_buffer_scale": 1,
        "ramp": {"from": 1, "to": 2, "start_iteration": 16, "iterations": 2},
    },
    "decision": {"kind": "rebalanced", "reason": "why", "predicted_step_time_s": 0.25},
}


def test_an_answer_is_read_whole() -> None:
    assert AllocateResponse.from_json(ANSWER) == AllocateResponse(
        "job",
        3,
        17,
        20,
        (
            Allocation("a/0", 0, 10, 0, 0.5, planned_batch=12, pool=0),
            Allocation("b/0", 1, 4, 10, 0.2),
        ),
        OptimizerInstruction("dynamic_sgd", 1.5, 1.0, Ramp(1.0, 2.0, 16, 2)),
        Decision("rebalanced", "why", 0.25),
        Tail(14, (4, 2), (2,)),
    )


def test_answers_may_grow() -> None:
    grown = json.loads(json.dumps(ANSWER).replace('"rank"', '"new": {"x": [null]}, "rank"'))
    assert AllocateResponse.from_json({**grown, "more": 1, "tail": None}).tail is None
    assert AllocateResponse.from_json({**grown, "decision": {"kind": "dreamt", "reason": ""}}).decision.kind == "dreamt"


def test_what_is_not_set_is_not_sent() -> None:
    assert JobSpec(8).to_json() == {"global_batch": 8}
    assert JobSpec(8, allowed_sizes=(0, 4), profile=False).to_json() == {
        "global_batch": 8,
        "allowed_sizes": [0, 4],
        "profile": False,
    }
    assert JoinRequest("a").to_json() == {"worker": "a"}
    assert WorkerReport("a", 0, 1, 0.0).to_json() == {
        "worker": "a",
        "iteration": 0,
        "local_batch": 1,
        "compute_time_s": 0.0,
    }


def test_the_kind_of_a_problem_is_the_last_part_of_its_type() -> None:
    problem = Problem.from_json({"type": "urn:evenstep:problem:busy", "title": "t", "status": 429, "detail": "d"})
    assert problem.slug == "busy"


def test_numbers_that_json_cannot_say_are_refused_by_name() -> None:
    with pytest.raises(SettingError, match=r"drivers\.own_cpu: inf: must be finite"):
        WorkerReport("a", 0, 1, 0.1, drivers={"own_cpu": float("inf")}).to_json()
    with pytest.raises(SettingError, match="compute_time_s: nan"):
        WorkerReport("a", 0, 1, float("nan")).to_json()


def changed(path: str, value: object) -> dict[str, Any]:
    """Returns the response with another value at a path such as `allocations.1.rank`; `...` removes the field."""
    answer: dict[str, Any] = json.loads(json.dumps(ANSWER))
    at: Any = answer
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in way:
        at = at[part]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return answer


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("generation", -1, "generation: -1: must be a whole number"),
        ("generation", 1.5, "generation: 1.5: must be a whole number"),
        ("generation", True, "generation: True: must be a whole number"),
        ("generation", ..., "AllocateResponse has no field 'generation'"),
        ("generation", None, "AllocateResponse has no field 'generation'"),
        ("job_id", 7, "job_id: 7: must be text"),
        ("allocations", {}, "allocations: {}: must be a list"),
        ("allocations.1.local_batch", "4", "allocations[1].local_batch: '4': must be a whole number"),
        (
            "allocations.0.gradient_weight",
            "x",
            "allocations[0].gradient_weight: 'x': must be a finite number",
        ),
        (
            "allocations.0.gradient_weight",
            float("nan"),
            "allocations[0].gradient_weight: nan: must be a finite number",
        ),
        ("allocations.0", 5, "allocations[0]: 5: must be an object"),
        ("allocations.0.worker", ..., "allocations[0] has no field 'worker'"),
        ("tail.chunks.1", "2", "tail.chunks[1]: '2': must be a whole number"),
        ("optimizer.ramp.from", ..., "optimizer.ramp has no field 'from'"),
    ],
)
def test_what_is_needed_and_wrong_is_named(path: str, value: object, told: str) -> None:
    with pytest.raises(UnusableError) as error:
        AllocateResponse.from_json(changed(path, value))
    assert told in str(error.value)


def test_a_body_that_is_no_object_is_shown_in_part() -> None:
    with pytest.raises(UnusableError, match="the body: 'xxx") as error:
        AllocateResponse.from_json("x" * 1000)
    assert len(str(error.value)) < 200


FINITE = st.floats(allow_nan=False, allow_infinity=False)
st.register_type_strategy(int, st.integers(0, 1 << 63))
st.register_type_strategy(float, FINITE)


def of(kind: type[Message]) -> st.SearchStrategy[Message]:
    """Generates messages with every field, sometimes with default values."""
    return st.builds(kind, **{field.name: ... for field in fields(kind) if field.default_factory is MISSING})


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_every_message_survives_the_wire(kind: type[Message]) -> None:
    @given(of(kind))
    def survives(message: Message) -> None:
        assert kind.from_json(json.loads(json.dumps(message.to_json(), allow_nan=False))) == message
        assert pickle.loads(pickle.dumps(message)) == message  # noqa: S301  # Ranks exchange pickled messages.

    survives()
