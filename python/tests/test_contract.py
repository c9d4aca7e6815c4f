"""Compares the package's messages with the OpenAPI document of the real predictor."""

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # It has no type hints.
import pytest

from evenstep.drivers import NAMES
from evenstep.wire.codec import Message
from evenstep.wire.messages import (
    AllocateRequest,
    AllocateResponse,
    BackgroundSettings,
    JobSpec,
    JoinRequest,
    JoinResponse,
    LearningRateSettings,
    OomReport,
    OomResponse,
    Problem,
    TailReport,
    WorkerReport,
)
from programs import fetch, fetch_json

SENT = (JobSpec, JoinRequest, AllocateRequest, OomReport)
READ = (JoinResponse, AllocateResponse, OomResponse, Problem)

PATHS = {
    ("put", "/v1/jobs/{job_id}"): (JobSpec, None),
    ("post", "/v1/jobs/{job_id}/workers"): (JoinRequest, JoinResponse),
    ("delete", "/v1/jobs/{job_id}/workers/{worker}"): (None, JoinResponse),
    ("post", "/v1/jobs/{job_id}/workers/{worker}/oom"): (OomReport, OomResponse),
    ("post", "/allocate"): (AllocateRequest, AllocateResponse),
}
"""The message of each request of the client, and of its response."""


@pytest.fixture(scope="module")
def document(predictor: str) -> dict[str, Any]:
    found: dict[str, Any] = fetch_json(f"{predictor}/openapi.json")
    return found


def wire_name(name: str) -> str:
    return name.removesuffix("_")


def drifts(document: dict[str, Any], kind: type[Message], *, sent: bool) -> list[str]:
    """Describes the differences between a message and the schema of the same name."""
    schema = document["components"]["schemas"].get(kind.__name__)
    if schema is None:
        return [f"{kind.__name__}: not a schema of the contract"]
    needed = set(schema.get("required", []))
    ours = {wire_name(field.name): field for field in fields(kind)}
    hints = typing.get_type_hints(kind)
    found = [f"{kind.__name__}.{name}: required by the contract, but never sent" for name in needed - set(ours) if sent]
    for name, field in ours.items():
        where = f"{kind.__name__}.{name}"
        always = field.default is MISSING and field.default_factory is MISSING
        if name not in schema["properties"]:
            found.append(f"{where}: not in the contract")
            continue
        if sent and name in needed and not always:
            found.append(f"{where}: required by the contract, but optional here")
        if not sent and always and name not in needed:
            found.append(f"{where}: required here, but optional in the contract")
        found += type_drifts(document, where, hints[field.name], schema["properties"][name], sent=sent)
    return found


def type_drifts(document: dict[str, Any], where: str, hint: Any, schema: dict[str, Any], *, sent: bool) -> list[str]:
    """Describes the difference between a field's type and its schema."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (hint,) = (argument for argument in arguments if argument is not type(None))
        return type_drifts(document, where, hint, schema, sent=sent)
    schema = resolved(document, schema)
    if origin is tuple:
        if schema.get("type") != "array":
            return [f"{where}: a list here, {schema} in the contract"]
        return type_drifts(document, where + "[]", arguments[0], schema["items"], sent=sent)
    if isinstance(hint, type) and issubclass(hint, Message):
        if schema is not document["components"]["schemas"].get(hint.__name__):
            return [f"{where}: a {hint.__name__} here, {schema} in the contract"]
        return drifts(document, hint, sent=sent)
    if origin is typing.Literal:
        fits = set(arguments) == set(schema.get("enum", []))
    else:
        kinds = schema.get("type")
        said = {kinds} if isinstance(kinds, str) else set(kinds or ())
        fits = said - {"null"} == {JSON_TYPES[origin or hint]}
    return [] if fits else [f"{where}: {hint} here, {schema} in the contract"]


JSON_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string", Mapping: "object"}


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema without its references and its `null`."""
    if "oneOf" in schema:
        (schema,) = (option for option in schema["oneOf"] if option.get("type") != "null")
    if "$ref" in schema:
        found: dict[str, Any] = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return found
    return schema


@pytest.mark.parametrize("kind", SENT, ids=lambda kind: kind.__name__)
def test_what_we_send_is_in_the_contract(document: dict[str, Any], kind: type[Message]) -> None:
    assert drifts(document, kind, sent=True) == []


@pytest.mark.parametrize("kind", READ, ids=lambda kind: kind.__name__)
def test_what_we_read_is_in_the_contract(document: dict[str, Any], kind: type[Message]) -> None:
    assert drifts(document, kind, sent=False) == []


@pytest.mark.parametrize(("method", "path"), PATHS, ids=str)
def test_each_request_goes_where_the_contract_says(document: dict[str, Any], method: str, path: str) -> None:
    request, answer = PATHS[method, path]
    operation = document["paths"][path][method]
    if request is not None:
        body = operation["requestBody"]["content"]["application/json"]["schema"]
        assert body["$ref"].endswith(f"/{request.__name__}")
    if answer is not None:
        body = operation["responses"]["200"]["content"]["application/json"]["schema"]
        assert body["$ref"].endswith(f"/{answer.__name__}")


def test_a_drift_is_noticed(document: dict[str, Any]) -> None:
    """Tests the check itself: it finds a renamed, a retyped and a new required field."""
    for old, new, told in (
        ('"lease_s"', '"lease_seconds"', "JobSpec.lease_s: not in the contract"),
        (
            '"required": ["global_batch"]',
            '"required": ["global_batch", "owner"]',
            "JobSpec.owner: required by the contract",
        ),
        ('"auto"', '"automatic"', "JobSpec.hedge"),
    ):
        text = json.dumps(document)
        assert old in text
        assert any(told in found for found in drifts(json.loads(text.replace(old, new)), JobSpec, sent=True))
    retyped = json.loads(json.dumps(document))
    retyped["components"]["schemas"]["Allocation"]["properties"]["rank"]["type"] = "number"
    retyped["components"]["schemas"]["Tail"]["required"].remove("offset")
    found = drifts(retyped, AllocateResponse, sent=False)
    assert [drift.split(":")[0] for drift in found] == ["Allocation.rank", "Tail.offset"]


def validate(document: dict[str, Any], name: str, value: object) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(value)


def test_full_requests_and_real_answers_fit_the_schemas(document: dict[str, Any], predictor: str, job_id: str) -> None:
    spec = JobSpec(
        24,
        quantum=2,
        allowed_sizes=None,
        distinct_sizes=3,
        accumulation=True,
        profile=False,
        overlap_begins=0.4,
        memory_headroom=0.1,
        rule="legw",
        learning_rate=LearningRateSettings(8, 5.0, 1000),
        hedge="auto",
        min_chunk=2,
        background=BackgroundSettings(1.2),
        min_workers=1,
        lease_s=120.0,
        min_gain=0.02,
        max_batch_growth=2.0,
        flap_cooldown_s=60.0,
        keep_s=3600,
        min_local_batch=2,
        max_local_batch=24,
    )
    join = JoinRequest("node-a/0", "cpu", 2, 24, 1 << 30, claims=True)
    report = WorkerReport(
        "node-a/0",
        0,
        24,
        0.5,
        2,
        TailReport(1, 2, 0.1, 0.0),
        0.0,
        0.0,
        1 << 20,
        None,
        0.0,
        0.0,
        1.0,
        1.0,
        dict.fromkeys(NAMES, 0.5),
    )
    requests: tuple[tuple[str, str, Message, str | None], ...] = (
        ("PUT", f"/v1/jobs/{job_id}", spec, None),
        ("POST", f"/v1/jobs/{job_id}/workers", join, "JoinResponse"),
        ("POST", "/allocate", AllocateRequest(job_id, 1, 0), "AllocateResponse"),
        ("POST", "/allocate", AllocateRequest(job_id, 1, 1, 20, (), (report,)), "AllocateResponse"),
        ("POST", "/allocate", AllocateRequest(job_id, 9, 2), "Problem"),
        ("POST", f"/v1/jobs/{job_id}/workers/node-a%2F0/oom", OomReport(1, 20), "OomResponse"),
    )
    for method, path, message, answer in requests:
        validate(document, type(message).__name__, message.to_json())
        status, body = fetch(predictor + path, method=method, body=message.to_json())
        assert (status < 300) == (answer != "Problem"), body
        if answer is not None:
            validate(document, answer, json.loads(body))
