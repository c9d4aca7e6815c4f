"""All messages between the package and a predictor, with the names used in JSON."""

from evenstep.wire.allocation import (
    AllocateRequest,
    AllocateResponse,
    Allocation,
    BackgroundBudget,
    Decision,
    OptimizerInstruction,
    Ramp,
    Tail,
    TailReport,
    WorkerReport,
)
from evenstep.wire.codec import Message
from evenstep.wire.job import (
    BackgroundSettings,
    Hedge,
    JobSpec,
    JoinRequest,
    JoinResponse,
    LearningRateRule,
    LearningRateSettings,
    OomReport,
    OomResponse,
)
from evenstep.wire.problem import Problem

__all__ = [
    "AllocateRequest",
    "AllocateResponse",
    "Allocation",
    "BackgroundBudget",
    "BackgroundSettings",
    "Decision",
    "Hedge",
    "JobSpec",
    "JoinRequest",
    "JoinResponse",
    "LearningRateRule",
    "LearningRateSettings",
    "Message",
    "OomReport",
    "OomResponse",
    "OptimizerInstruction",
    "Problem",
    "Ramp",
    "Tail",
    "TailReport",
    "WorkerReport",
]
