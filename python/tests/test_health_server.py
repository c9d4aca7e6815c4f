"""The node health check of NVRx, called by gRPC's own client over its Unix socket."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from evenstep.cli import main
from programs import PATIENCE_S, Program, serving
from scripted import SLEEPS, Answers, Does, Scripted, unused_address
from slow_worker import NORMAL, SLOW, SlowWorker

grpc = pytest.importorskip("grpc", reason="evenstep[nvrx] is not installed")

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
        return call(request(args=["--no-slurm"]), timeout=PATIENCE_S)


def is_healthy(answer: Any) -> bool:
    """Judges as NVRx does: success, and no failure in the output."""
    return bool(answer.success) and answer.output == '{"fail_count": 0}'


def until(socket: Path, healthy: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not healthy(answer := ask(socket)):
        assert time.monotonic() < deadline, answer
        time.sleep(0.02)
    return answer


@contextmanager
def checking(socket: Path, servers: str, *more: str) -> Iterator[Program]:
    """Runs the server of the health check, which then listens."""
    options = (f"--socket={socket}", f"--server={servers}", "--node=node-a", *more)
    program = Program([sys.executable, "-m", "evenstep", "health-server", *options])
    try:
        program.line(lambda line: line if line == f"listening on unix://{socket}\n" else None)
        yield program
    finally:
        program.kill()


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Returns the message for options that break a rule."""
    assert main(["health-server", *options]) == 1
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()), "programs that start from here can be ended"
    told = capsys.readouterr()
    assert told.out == ""
    return told.err


def test_a_node_with_a_straggler_is_unhealthy(
    predictor: str, predictor_binary: Path, tmp_path: Path, job_id: str
) -> None:
    job = SlowWorker(predictor, job_id)
    socket = tmp_path / "health.sock"
    # The other predictor does not know the job, the third one does not respond.
    with (
        serving(predictor_binary, tmp_path) as other,
        checking(socket, f"{unused_address()},{other},{predictor}", "--after=1s"),
    ):
        answer = ask(socket)
        assert is_healthy(answer)
        assert answer.exit_code == 0
        job.train(100, NORMAL)
        job.train(100, SLOW)
        answer = until(socket, lambda answer: not is_healthy(answer))
        assert answer.exit_code == 1
        assert answer.output == '{"fail_count": 1}'
        assert f"worker node-a/pod/0 of job {job_id} has " in answer.error
        job.train(200, NORMAL)
        until(socket, is_healthy)


def test_without_a_usable_response_a_node_is_healthy(tmp_path: Path) -> None:
    socket = tmp_path / "health.sock"
    wrong = (Answers(401), Answers(body=b"{}"), Answers(body=b"[" * 10_000), Answers(body=b'{"healthy": false}'))
    servers = [unused_address(), *(Scripted([does]).url for does in wrong)]
    with checking(socket, ",".join(servers)):
        assert is_healthy(ask(socket))


def straggler(number: int, ratio: float) -> str:
    return (
        f'{{"job_id": "job", "worker": "node-a/{number}", "since_unix_ms": 0, "straggler": '
        f'{{"reason": "unknown", "speed_ratio": {ratio}, "since_iteration": 7, "detail": "why"}}}}'
    )


def unhealthy(stragglers: list[str]) -> Does:
    view = f'{{"node": "node-a", "healthy": false, "stragglers": [{", ".join(stragglers)}]}}'
    return Answers(body=view.encode())


def test_the_slowest_of_many_stragglers_are_named(tmp_path: Path) -> None:
    socket = tmp_path / "health.sock"
    one = Scripted([unhealthy([straggler(number, 0.9 - number / 100) for number in range(20)])])
    two = Scripted([unhealthy([straggler(100, 0.25)])])
    with checking(socket, f"{one.url},{two.url}", "--after=90s"):
        answer = ask(socket)
    assert answer.output == '{"fail_count": 21}'
    named = answer.error.split("; ")
    assert len(named) == 16
    assert named[0] == "worker node-a/100 of job job has 25 % of its usual speed since iteration 7: why"
    assert named[1].startswith("worker node-a/19 of job job has 71 %")
    assert "GET /v1/nodes/node-a/health?after_s=90 " in one.heard()[0]


def test_a_predictor_that_hangs_does_not_hide_the_others(tmp_path: Path) -> None:
    socket = tmp_path / "health.sock"
    slow, known = Scripted([SLEEPS]), Scripted([unhealthy([straggler(0, 0.5)])])
    with checking(socket, f"{slow.url},{known.url}"):
        assert ask(socket).output == '{"fail_count": 1}'


def test_calls_at_once_share_a_request(tmp_path: Path) -> None:
    socket = tmp_path / "health.sock"
    known = Scripted([unhealthy([straggler(0, 0.5)])])
    answers: list[Any] = []
    with checking(socket, known.url):
        begun = time.monotonic()
        threads = [threading.Thread(target=lambda: answers.append(ask(socket))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.monotonic() - begun
    assert [answer.exit_code for answer in answers] == [1] * 8
    # A response is used again for 1 s.
    assert 1 <= len(known.heard()) <= 1 + took


def test_a_call_above_the_limit_gets_a_status(tmp_path: Path) -> None:
    socket = tmp_path / "health.sock"
    with checking(socket, unused_address()):
        for method, message, code in (
            (METHOD, b"\x0a" + b"x" * (70 << 10), grpc.StatusCode.RESOURCE_EXHAUSTED),
            (METHOD + "s", b"", grpc.StatusCode.UNIMPLEMENTED),
        ):
            with grpc.insecure_channel(f"unix://{socket}") as channel, pytest.raises(grpc.RpcError) as error:
                channel.unary_unary(method)(message, timeout=PATIENCE_S)
            assert error.value.code() == code
        assert is_healthy(ask(socket)), "it still serves"


def test_only_one_process_has_a_socket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    socket, server = tmp_path / "health.sock", f"--server={unused_address()}"
    with checking(socket, unused_address()) as program:
        assert socket.stat().st_mode & 0o777 == 0o666
        told = refused(capsys, f"--socket={socket}", server)
        assert told == f"evenstep: --socket {socket}: another process listens there\n"
        assert is_healthy(ask(socket)), "the first one still serves"
        program.process.kill()
        program.process.wait(PATIENCE_S)
    assert socket.exists()
    for end in (signal.SIGTERM, signal.SIGINT):
        # It replaces the socket of a process that has ended.
        with checking(socket, unused_address()) as program:
            assert is_healthy(ask(socket))
            os.kill(program.process.pid, end)
            assert program.process.wait(PATIENCE_S) == 0
        assert not socket.exists()


def test_options_that_break_a_rule_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("kept")
    socket, server = f"--socket={tmp_path / 'health.sock'}", f"--server={unused_address()}"
    for after in ("0s", "10", "soon", "1d", "25h", "-1s", "999999999h"):
        told = refused(capsys, socket, server, f"--after={after}")
        assert told == f"evenstep: --after {after!r}: must be a time such as 90s, 10m or 2h, from 1s to 24h\n"
    assert "--node 'a/b': must be 1 to 128 characters" in refused(capsys, socket, server, "--node=a/b")
    assert '"off": must be like http://host:port' in refused(capsys, socket, "--server=off")
    assert "set --server or EVENSTEP_SERVER" in refused(capsys, socket)
    assert f"--socket {tmp_path / 'file'}: exists and is not a socket" in refused(
        capsys, f"--socket={tmp_path / 'file'}", server
    )
    assert (tmp_path / "file").read_text() == "kept"
    missing = tmp_path / "missing" / "health.sock"
    assert f"--socket {missing}: No such file or directory" in refused(capsys, f"--socket={missing}", server)
    long = tmp_path / ("x" * 120)
    assert f"--socket {long}: AF_UNIX path too long" in refused(capsys, f"--socket={long}", server)


def test_without_grpc_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    told = refused(capsys, f"--socket={tmp_path / 'health.sock'}", f"--server={unused_address()}")
    assert "health-server needs grpcio and protobuf" in told
    assert "pip install evenstep[nvrx]" in told
