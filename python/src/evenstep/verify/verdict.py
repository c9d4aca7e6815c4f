"""The verdict: the meaning of the differences, with a line and advice for each check."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from evenstep.doctor.check import Check
from evenstep.verify.compare import Difference, Samples
from evenstep.verify.recording.task import Observations, Recorded

#: `unknown`: the script draws random numbers, so that its gradients cannot be compared.
Result = Literal["agree", "differ", "unknown", "failed"]

_EXIT_STATUSES: dict[Result, int] = {"agree": 0, "differ": 1, "unknown": 2, "failed": 2}

_MEANINGS: dict[Result, str] = {
    "agree": "uneven batches train as one process does",
    "differ": "uneven batches do not train as one process does",
    "unknown": "no verdict: the gradient changes from run to run",
    "failed": "the script could not be run",
}

#: Number of names and samples that are shown as examples.
_SHOWN = 3

#: Maximum difference of two updates by the same gradient, relative to their length: the median over parameters. Adam
#: and similar optimizers amplify rounding errors in some parameters, and a small step is inexact for a large parameter.
_UPDATE_MAX = 0.1

WITHOUT_WRAP = (
    "job.wrap was never called: DDP averages gradients with equal weights. Use model = "
    "job.wrap(DistributedDataParallel(net)), or without DDP job.scale(loss).backward()"
)

PLAIN = "--plain switches dropout off, makes batch norm use its running statistics, and compares the rest"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a script."""

    result: Result
    checks: tuple[Check, ...]
    #: The largest differences of gradients, in decreasing order.
    worst: tuple[Difference, ...] = ()
    #: The largest difference relative to the largest entry; None if nothing was compared.
    difference: float | None = None
    #: The maximum allowed difference.
    tolerance: float | None = None
    #: The end of a failed process's output.
    output: str = ""

    @property
    def exit_status(self) -> int:
        """Returns 0 if the results agree, 1 if they differ, 2 if there is no verdict."""
        return _EXIT_STATUSES[self.result]

    def text(self) -> str:
        """Returns the text for people: a line for each check, then the result."""
        output = f"{self.output}\n" if self.output else ""
        lines = "".join(f"{check.line()}\n" for check in self.checks)
        return f"{output}{lines}{self.result}: {_MEANINGS[self.result]}\n"

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON object for programs; numbers that are not finite are null."""
        return {
            "result": self.result,
            "difference": _finite(self.difference),
            "tolerance": self.tolerance,
            "worst": [
                {"iteration": one.iteration, "parameter": one.name, "difference": _finite(one.relative)}
                for one in self.worst
            ],
            "checks": [check.to_json() for check in self.checks],
            "output": self.output,
        }


def could_not_run(what: str, why: str, output: str = "") -> Verdict:
    """Returns the verdict on a script that failed before the comparison."""
    return Verdict("failed", (Check(what, "failed", why, "see its output above" if output else ""),), output=output)


def missing_line(seen: Observations, updates: int) -> Verdict | None:
    """Returns the verdict on a script without the calls that make its batches uneven."""
    if not seen.has_init:
        return _missing("evenstep.init was never called: the script does not use evenstep", "add job = evenstep.init()")
    if not seen.has_loader:
        advice = "use loader = job.loader(dataset, global_batch=...) instead of DataLoader and its sampler"
        return _missing("job.loader was never called: batches are not sized by a plan", advice)
    if not updates:
        return could_not_run(
            "optimizer", ("no step of a torch.optim.Optimizer was observed, so there are no gradients to compare")
        )
    return None


def judge(
    ranks: Sequence[Recorded],
    one: Recorded,
    *,
    samples: Samples,
    unlike_ranks: Sequence[int],
    gradients: Sequence[Difference],
    repeated: Sequence[Difference],
    micro_batch: int | None,
    allowed: tuple[str, float],
) -> Verdict:
    """Returns the verdict on a script that ran.

    Args:
        ranks: the records of the uneven ranks.
        one: the records of the one process.
        samples: the comparison of the samples.
        unlike_ranks: iterations after which ranks differed.
        gradients: differences between the ranks and the one process, the largest first.
        repeated: differences between the two runs in one process, which have other random numbers and other orders of
            the samples in a batch; the largest first.
        micro_batch: maximum number of samples in a pass of the one process.
        allowed: the computing type, and the maximum gradient difference for it.
    """
    seen, tolerance = ranks[0].seen, allowed[1]
    # A rank with few samples may not see it.
    told = next((rank.seen.not_a_mean for rank in ranks if rank.seen.not_a_mean), "")
    is_random = bool(repeated) and repeated[0].relative > tolerance
    differs = [found for found in gradients if found.relative > tolerance]
    checks = [
        _plans(ranks),
        _samples(samples),
        _contents(samples, is_random=is_random),
        _ranks(unlike_ranks),
        _gradients(gradients, allowed, _reason(seen, gradients[0], samples, told) if differs else ""),
    ]
    if is_random:
        checks.append(_repeatable(seen, repeated, samples))
    if differs and is_random and seen.is_weighted:
        checks[4] = Check("gradients", "warning", f"{checks[4].found}; as expected, see repeatable")
    if not differs:
        checks += _updates(one)
    if not one.seen.has_same_start:
        found = "the models of the ranks and of the one process have different parameters"
        checks.append(Check("beginning", "warning", found, "does the script create another model in one process?"))
    if seen.lacks_epoch:
        found = "the script trained only one epoch, which was shortened"
        checks.append(Check("epochs", "warning", found, "let it train two, to compare what changes between epochs"))
    if micro_batch and not one.seen.is_split:
        found = f"no pass of the one process had more than {micro_batch} samples, or not through the trained model"
        checks.append(Check("micro-batch", "warning", found, "call the model, not its parts"))
    result: Result = "agree"
    if any(check.status == "failed" for check in checks):
        result = "differ"
    elif differs:
        result = "unknown"
    worst = tuple(gradients[:_SHOWN])
    return Verdict(result, tuple(checks), worst, gradients[0].relative if gradients else None, tolerance)


def mixing(seen: Observations) -> str:
    """Returns why the batches of a model with batch norm cannot be split."""
    return f"batch norm ({_some(seen.batch_norms)}) mixes the samples of a batch, so it cannot be split; {PLAIN}"


def _plans(ranks: Sequence[Recorded]) -> Check:
    iterations = ranks[0].iterations()
    plans = ["/".join(str(rank.batches.get(iteration, 0)) for rank in ranks) for iteration in iterations]
    return Check("plans", "ok", f"{len(iterations)} iterations: {', '.join(dict.fromkeys(plans))}")


def _samples(samples: Samples) -> Check:
    if not samples.samples:
        return Check("samples", "warning", "not checked: the script itself splits data streams between ranks")
    if samples.wrong:
        advice = "pass job.loader a seed that is the same in every run, and use data sets of one length"
        return Check("samples", "failed", samples.wrong[0], advice)
    return Check("samples", "ok", f"{samples.samples}, each exactly once, and the same as in one process")


def _contents(samples: Samples, *, is_random: bool) -> Check:
    if samples.differs_by_rank:
        advice = "a data set that is split or shuffled at random needs a seed: random_split(.., generator=)"
        return Check(
            "contents",
            "failed",
            ("ranks have different data sets: some samples are repeated and others are missing"),
            advice,
        )
    if not samples.unlike:
        return Check("contents", "ok", f"{samples.compared} samples, each with the same content in all processes")
    found = f"{len(samples.unlike)} samples differ between runs, such as {samples.unlike[:_SHOWN]}"
    advice = "set a seed for what is random once, and switch random augmentation off for the verification"
    return Check("contents", "warning" if is_random else "failed", found, advice)


def _ranks(unlike: Sequence[int]) -> Check:
    if unlike:
        found = f"after iteration {unlike[0]} gradients or parameters differ between ranks"
        return Check("ranks", "failed", found, "is the model wrapped in DistributedDataParallel?")
    return Check("ranks", "ok", "gradients and parameters are the same on all ranks after each step")


def _gradients(gradients: Sequence[Difference], allowed: tuple[str, float], reason: str) -> Check:
    if not gradients:
        return Check("gradients", "failed", "no parameter has a gradient", "is loss.backward() called?")
    dtype, tolerance = allowed
    worst: dict[str, Difference] = {}
    for found in gradients:
        worst.setdefault(found.name, found)
    above = [found for found in worst.values() if found.relative > tolerance]
    shown = ", ".join(
        f"{found.relative:.1e} in {found.name} (iteration {found.iteration})"
        for found in (above or list(worst.values()))[: _SHOWN if above else 1]
    )
    rule = f"of the largest entry, at most {tolerance:.0e} for {dtype}"
    if above:
        count = f"{len(above)} of {len(worst)} parameters"
        return Check("gradients", "failed", f"differ from one process's in {count}: {shown} {rule}", reason)
    return Check("gradients", "ok", f"differ from one process's by {shown} {rule}")


def _reason(seen: Observations, worst: Difference, samples: Samples, not_a_mean: str) -> str:
    """Returns the most likely reason."""
    times = "" if worst.factor is None else f" ({worst.name} is {worst.factor:.3g} times the gradient of one process)"
    batch_norm = (
        f"batch norm ({_some(seen.batch_norms)}) uses the statistics of each rank's own batch, in any "
        f"data-parallel training; {PLAIN}"
    )
    iteration, read, given = seen.mismatched_batch or (0, 0, 0)
    strange = (
        f"the model got {given} samples in iteration {iteration}, but {read} were read: loops that read ahead "
        "must mark iterations with job.step()"
    )
    reasons = (
        (not seen.is_weighted, WITHOUT_WRAP),
        (
            seen.is_unread,
            (
                "the script trains on batches that it has kept from an earlier epoch, as itertools.cycle does: read "
                "each epoch from the loader, with `for epoch in range(..): for batch in loader`"
            ),
        ),
        (bool(not_a_mean), f'{not_a_mean}: use job.wrap(.., loss="tokens") and job.count'),
        (bool(samples.unlike), "samples differ, see contents"),
        (seen.mismatched_batch is not None, strange),
        (bool(seen.batch_norms), batch_norm),
        (bool(seen.dropouts), f"dropout ({_some(seen.dropouts)}) drops different values; {PLAIN}"),
        (seen.has_inner, "the inner hook of job.wrap may lose precision: set the allowed difference with --tolerance"),
        (
            seen.loss == "tokens",
            f'wrap(loss="tokens") is for sums over tokens, whose number job.count gets{times}',
        ),
        (
            seen.loss == "sum",
            f'wrap(loss="sum") is for sums over samples: remove it if the loss is a mean{times}',
        ),
        (
            seen.loss == "scaled",
            (
                'wrap(loss="scaled") requires losses whose DDP average is already right: weight them by rank '
                f"yourself{times}"
            ),
        ),
    )
    mean = (
        'the loss must be the mean over the samples of the batch: for sums use wrap(loss="sum"), for '
        f'means over tokens, or over anything but samples, wrap(loss="tokens"){times}'
    )
    return next((reason for is_so, reason in reasons if is_so), mean)


def _repeatable(seen: Observations, repeated: Sequence[Difference], samples: Samples) -> Check:
    worst = repeated[0]
    found = (
        "in one process, other random numbers or another order of the samples change the gradient: "
        f"{worst.relative:.1e} in {worst.name}"
    )
    if seen.dropouts:
        return Check("repeatable", "warning", found, f"dropout ({_some(seen.dropouts)}); {PLAIN}")
    if samples.unlike:
        return Check(
            "repeatable", "warning", found, ("see contents: switch off random parts of the data for the verification")
        )
    advice = (
        "the script is not repeatable, with or without evenstep: switch off its use of random numbers for the "
        "verification, and use a loss that does not depend on the order of the samples"
    )
    return Check("repeatable", "warning", found, advice)


def _updates(one: Recorded) -> list[Check]:
    """Compares the results of steps that started from the same parameters and had the same gradient."""
    worst = max(one.updates, key=lambda update: update.apart, default=None)
    if worst is None or worst.apart <= _UPDATE_MAX:
        return []
    found = (
        f"with the same gradient, the length of the step in one process differs by {worst.apart:.0%} (iteration "
        f"{worst.iteration})"
    )
    advice = "does something depend on the number of processes, such as the learning rate?"
    return [Check("updates", "warning", found, advice)]


def _missing(found: str, advice: str) -> Verdict:
    return Verdict("differ", (Check("lines", "failed", found, advice),))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _finite(number: float | None) -> float | None:
    return None if number is None or not math.isfinite(number) else number
