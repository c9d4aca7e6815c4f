"""All messages between the package and a predictor, with the names used in JSON."""

from evenstep.wire.allocation import (
    AllocateAnswer,
    AllocateRequest,
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
    JoinAnswer,
    JoinRequest,
    LearningRateRule,
    LearningRateSettings,
    OomAnswer,
    OomReport,
)
from evenstep.wire.problem import Problem

__all__ = [
    "AllocateAnswer",
    "AllocateRequest",
    "Allocation",
    "BackgroundBudget",
    "BackgroundSettings",
    "Decision",
    "Hedge",
    "JobSpec",
    "JoinAnswer",
    "JoinRequest",
    "LearningRateRule",
    "LearningRateSettings",
    "Message",
    "OomAnswer",
    "OomReport",
    "OptimizerInstruction",
    "Problem",
    "Ramp",
    "Tail",
    "TailReport",
    "WorkerReport",
]
