"""The node health check of NVRx, asked with gRPC's own client over the agent's Unix socket."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from programs import PATIENCE_S, fetch, fetch_json, sampling
from scripted import unused_address

grpc = pytest.importorskip("grpc")

METHOD = "/nvhcd.HealthCheckService/RunHealthCheck"
ILL = 0.5
"""Speed of the straggler relative to its own earlier speed."""


def messages() -> tuple[Any, Any]:
    """Returns the classes of request and response, from the published definition (NVRx 0.6, nvhcd.proto)."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="nvhcd.proto", package="nvhcd", syntax="proto3")
    request = file.message_type.add(name="HealthCheckRequest")
    request.field.add(name="args", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_REPEATED)
    response = file.message_type.add(name="HealthCheckResponse")
    types = {
        "success": kinds.TYPE_BOOL,
        "exit_code": kinds.TYPE_INT32,
        "output": kinds.TYPE_STRING,
        "error": kinds.TYPE_STRING,
    }
    for number, (name, kind) in enumerate(types.items(), 1):
        response.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = (pool.FindMessageTypeByName(f"nvhcd.{name}") for name in ("HealthCheckRequest", "HealthCheckResponse"))
    request_class, response_class = map(message_factory.GetMessageClass, classes)
    return request_class, response_class


def ask(socket: Path) -> Any:
    """Asks as NVRx's launcher does."""
    request, response = messages()
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        call = channel.unary_unary(
            METHOD, request_serializer=request.SerializeToString, response_deserializer=response.FromString
        )
        return call(request(args=["--any"]), timeout=PATIENCE_S)


def is_healthy(answer: Any) -> bool:
    """Judges as NVRx does: success, and no failure in the output."""
    return bool(answer.success) and answer.output == '{"fail_count": 0}'


def until(socket: Path, healthy: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not healthy(answer := ask(socket)):
        assert time.monotonic() < deadline, answer
    return answer


def train(predictor: str, job: str, iterations: range, speed: Callable[[int], float], generation: int) -> None:
    """Reports iterations of two workers; the one on node-a has this speed."""
    for iteration in iterations:
        reports = [
            {
                "worker": f"{node}/pod/0",
                "iteration": iteration - 1,
                "local_batch": 64,
                "compute_time_s": 64 / own,
                "drivers": {},
            }
            for node, own in (("node-a", speed(iteration)), ("node-b", 100.0))
        ]
        body = {
            "job_id": job,
            "generation": generation,
            "iteration": iteration,
            "reports": reports if iteration else [],
        }
        status, answer = fetch(f"{predictor}/allocate", method="POST", body=body)
        assert status == 200, answer


def test_a_node_with_a_straggler_is_unhealthy(predictor: str, agent_binary: Path, tmp_path: Path, job_id: str) -> None:
    fetch(f"{predictor}/v1/jobs/{job_id}", method="PUT", body={"global_batch": 128})
    for node in ("node-a", "node-b"):
        _, joined = fetch(f"{predictor}/v1/jobs/{job_id}/workers", method="POST", body={"worker": f"{node}/pod/0"})
    generation = fetch_json(f"{predictor}/v1/jobs/{job_id}")["generation"]
    assert joined
    socket = tmp_path / "agent.sock"
    flags = (f"--socket={socket}", "--unhealthy-after=1s")
    with sampling(agent_binary, tmp_path, predictor, *flags):
        answer = ask(socket)
        assert is_healthy(answer)
        assert answer.exit_code == 0
        train(predictor, job_id, range(200), lambda iteration: 100.0 if iteration < 100 else 100.0 * ILL, generation)
        answer = until(socket, lambda answer: not is_healthy(answer))
        assert answer.exit_code == 1
        assert answer.output == '{"fail_count": 1}'
        assert f"worker node-a/pod/0 of job {job_id}" in answer.error
        health = fetch_json(f"{predictor}/v1/nodes/node-a/health?after_s=1")
        assert health["healthy"] is False
        assert health["stragglers"][0]["worker"] == "node-a/pod/0"
        assert fetch_json(f"{predictor}/v1/nodes/node-b/health?after_s=1") == {
            "node": "node-b",
            "healthy": True,
            "stragglers": [],
        }
        train(predictor, job_id, range(200, 400), lambda _: 100.0, generation)
        until(socket, is_healthy)


def test_without_a_predictor_a_node_is_healthy(agent_binary: Path, tmp_path: Path) -> None:
    for number, server in enumerate(("off", unused_address())):
        socket = tmp_path / f"agent-{number}.sock"
        folder = tmp_path / str(number)
        folder.mkdir()
        with sampling(agent_binary, folder, server, f"--socket={socket}"):
            assert is_healthy(ask(socket))


def test_calls_that_break_a_rule_get_a_status(agent_binary: Path, tmp_path: Path) -> None:
    socket = tmp_path / "agent.sock"
    with sampling(agent_binary, tmp_path, "off", f"--socket={socket}"):
        for method, message, code in (
            (METHOD, b"\x0a\xff", grpc.StatusCode.INVALID_ARGUMENT),
            (METHOD, b"\x0a" + b"x" * (70 << 10), grpc.StatusCode.INVALID_ARGUMENT),
            ("/nvhcd.HealthCheckService/Other", b"", grpc.StatusCode.UNIMPLEMENTED),
        ):
            with grpc.insecure_channel(f"unix://{socket}") as channel, pytest.raises(grpc.RpcError) as error:
                channel.unary_unary(method)(message, timeout=PATIENCE_S)
            assert error.value.code() == code
        assert is_healthy(ask(socket)), "the agent still serves"
