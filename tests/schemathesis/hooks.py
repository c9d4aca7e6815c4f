"""Rules of the service that JSON Schema cannot state.

Schemathesis sends requests that match the schema and expects that they are accepted. Each entry allows the service to reject
some of them: a pattern of the detail in the response, and the reason why the schema cannot state the rule.
"""

import re

import schemathesis

RULES = [
    (r"invalid type: floating point `-?\d+\.0`|invalid type: floating point `[-\de.]+`, expected [ui](32|64)",
     "JSON Schema counts 104.0 as an integer. Samples are stored as they were sent, so integers must be written as integers."),
    (r"(quantum|chunk|batch): \d+ must be (a multiple|1 to)", "Batches are multiples of another field, and quantum is at most global_batch."),
    (r"min_local_batch: \d+ must not be above max_local_batch", "A relation between two fields."),
    (r"(floor|cap)s? of \d+|no multiple of quantum|holds at most \d+ samples", "Floors and caps of job, worker and operator may contradict each other."),
    (r"allowed_sizes: ", "The sizes ascend and are multiples of quantum."),
    (r"distinct_sizes: ", "Only one of two fields."),
    (r"learning_rate: rule legw requires", "Fields that another field requires."),
    (r"paused: ", "Only one of two fields."),
    (r"reports\[\d+\]\.(iteration|micro_batches|tail\.\w+|compute_time_s): ", "Relations between the fields of a report and of its request."),
    (r"global_batch: \d+ exceeds the job's", "At most the global batch of the stored job."),
    (r"(iteration|reports): .*(ahead|after|has no allocation)", "Relative to the iterations of the stored job."),
    (r"speeds: |gpus: |job_id: ", "Exactly one of three fields, which agree with each other."),
    (r"GPU count|counts? ", "At most as many GPUs as the request has, each once."),
    (r"layers? ", "Relations between the layers of a profile, their costs and the network."),
    (r"network: ", "Required if costs are computed from sizes."),
]


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """Drops the failures of the listed rules."""
    if failure.__class__.__name__ != "RejectedPositiveData" or response.status_code != 422:
        return True
    problem = response.json()
    if problem["type"] == "urn:evenstep:problem:infeasible":
        return False
    return not any(re.search(pattern, problem["detail"]) for pattern, _ in RULES)
