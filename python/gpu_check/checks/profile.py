"""evenstep.profile measures the layers of a model on the device; their sum is the time of the model."""

import statistics
import time

from gpu_check.context import Context
from gpu_check.outcome import Outcome, judged

SAMPLES, REPEATS = 64, 20

#: Allowed ratio of the layers' times to the whole model's: layers run separately in a profile.
RATIO = (0.5, 2.0)


def prevented(_: Context) -> str:
    """Returns why the check is not applicable."""
    return ""


def check(context: Context) -> Outcome:
    """Compares the sum of the layers with whole passes."""
    import torch

    import evenstep

    device = torch.device("cuda", 0) if context.on_gpu else torch.device("cpu")
    width = 4096 if context.on_gpu else 256
    layers = [part for _ in range(4) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).to(device)
    x = torch.randn(SAMPLES, width, device=device)
    profile = evenstep.profile(model, x[:1], [SAMPLES // 2, SAMPLES])
    layers_s = sum(layer.compute_us[SAMPLES] for layer in profile.layers) / 1e6

    def finish() -> float:
        if context.on_gpu:
            torch.cuda.synchronize(device)
        return time.perf_counter()

    times = []
    for _ in range(REPEATS):
        begun = finish()
        model(x).sum().backward()
        times.append(finish() - begun)
    ratio = layers_s / statistics.median(times)
    said = (
        f"{len(profile.layers)} layers on {profile.device}: {1e3 * layers_s:.2f} ms, {ratio:.2f} times the whole model"
    )
    holds = RATIO[0] <= ratio <= RATIO[1] if context.on_gpu else layers_s > 0
    return judged(holds, said, layers_s=layers_s, ratio=ratio)
