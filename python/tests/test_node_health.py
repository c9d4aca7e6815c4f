"""The node health check of NVRx, called by gRPC's own client over its Unix socket."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from programs import PATIENCE_S, sampling
from scripted import unused_address
from slow_worker import NORMAL, SLOW, SlowWorker

grpc = pytest.importorskip("grpc")

METHOD = "/nvhcd.HealthCheckService/RunHealthCheck"


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
        time.sleep(0.02)
    return answer


def test_a_node_with_a_straggler_is_unhealthy(predictor: str, agent_binary: Path, tmp_path: Path, job_id: str) -> None:
    job = SlowWorker(predictor, job_id)
    socket = tmp_path / "agent.sock"
    flags = (f"--health-socket={socket}", "--unhealthy-after=1s")
    with sampling(agent_binary, tmp_path, predictor, *flags):
        answer = ask(socket)
        assert is_healthy(answer)
        assert answer.exit_code == 0
        job.train(100, NORMAL)
        job.train(100, SLOW)
        answer = until(socket, lambda answer: not is_healthy(answer))
        assert answer.exit_code == 1
        assert answer.output == '{"fail_count": 1}'
        assert f"worker node-a/pod/0 of job {job_id}" in answer.error
        job.train(200, NORMAL)
        until(socket, is_healthy)


def test_without_a_predictor_a_node_is_healthy(agent_binary: Path, tmp_path: Path) -> None:
    for number, server in enumerate(("off", unused_address())):
        socket = tmp_path / f"agent-{number}.sock"
        folder = tmp_path / str(number)
        folder.mkdir()
        with sampling(agent_binary, folder, server, f"--health-socket={socket}"):
            assert is_healthy(ask(socket))


def test_calls_that_break_a_rule_get_a_status(agent_binary: Path, tmp_path: Path) -> None:
    socket = tmp_path / "agent.sock"
    with sampling(agent_binary, tmp_path, "off", f"--health-socket={socket}"):
        for message, code in (
            (b"\x0a\xff", grpc.StatusCode.INVALID_ARGUMENT),
            (b"\x0a" + b"x" * (70 << 10), grpc.StatusCode.RESOURCE_EXHAUSTED),
        ):
            with grpc.insecure_channel(f"unix://{socket}") as channel, pytest.raises(grpc.RpcError) as error:
                channel.unary_unary(METHOD)(message, timeout=PATIENCE_S)
            assert error.value.code() == code
        assert is_healthy(ask(socket)), "the agent still serves"
