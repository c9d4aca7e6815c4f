"""An LSTM in PyTorch on the CPU. It forecasts the deviation of log speed from its EMA from a window of rows."""

import numpy as np
import torch

from .features import BASE_ALPHA, Inputs, levels

WINDOW = 20
HIDDEN = 16
EPOCHS_MAX = 60
PATIENCE = 8
BATCH = 64
LEARNING_RATE = 5e-3
WEIGHT_DECAY = 1e-2
HOLDOUT = 0.15
SEED = 1


class Network(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.lstm = torch.nn.LSTM(width, HIDDEN, batch_first=True)
        self.out = torch.nn.Linear(HIDDEN, 1)

    def forward(self, windows):
        return self.out(self.lstm(windows)[0][:, -1]).squeeze(-1)


class Lstm:
    """Network over a window of rows.

    Row k holds the values known before iteration k: last value, EMA, and the drivers that explain most (or the next
    batch)."""

    def fit(self, y, drivers, log_batch, names):
        torch.set_num_threads(1)
        torch.manual_seed(SEED)
        y = np.asarray(y)
        self.inputs = Inputs(drivers, log_batch, names)
        level, rows = levels(y), self.inputs.select(y, self.inputs.rows(drivers, log_batch))
        self.mean, self.spread = y.mean(), max(y.std(), 1e-9)
        self.level, self.last = level[-1], y[-1]
        known = np.column_stack([self._past(y[:-1], level[1:-1]), rows[1:]])
        self.recent = list(known[-WINDOW + 1 :])
        windows = np.lib.stride_tricks.sliding_window_view(known, WINDOW, axis=0).transpose(0, 2, 1)
        targets = (y[WINDOW:] - level[WINDOW:-1]) / self.spread
        self._train(torch.tensor(windows, dtype=torch.float32), torch.tensor(targets, dtype=torch.float32))

    def _past(self, last, level):
        return np.column_stack([(last - level) / self.spread, (level - self.mean) / self.spread])

    def _train(self, windows, targets):
        split = int(len(targets) * (1.0 - HOLDOUT))
        self.network = Network(windows.shape[2])
        optimizer = torch.optim.Adam(self.network.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        loss = torch.nn.functional.mse_loss
        best, kept, waited = float("inf"), None, 0
        for _ in range(EPOCHS_MAX):
            for batch in torch.randperm(split).split(BATCH):
                optimizer.zero_grad()
                loss(self.network(windows[batch]), targets[batch]).backward()
                optimizer.step()
            with torch.no_grad():
                held_out = loss(self.network(windows[split:]), targets[split:]).item()
            waited += 1
            if held_out < best:
                best, waited = held_out, 0
                kept = {name: value.clone() for name, value in self.network.state_dict().items()}
            if waited >= PATIENCE:
                break
        if kept:
            self.network.load_state_dict(kept)

    def predict(self, drivers, log_batch):
        past = self._past(np.array([self.last]), np.array([self.level]))[0]
        self.row = np.concatenate([past, self.inputs.row(drivers, log_batch)])
        window = torch.tensor(np.array([[*self.recent, self.row]]), dtype=torch.float32)
        with torch.no_grad():
            return self.level + self.spread * self.network(window).item()

    def observe(self, y, drivers, log_batch):
        self.recent = self.recent[1:] + [self.row]
        self.level += BASE_ALPHA * (y - self.level)
        self.last = y
