/** A job's iterations in columns, for charts: read once, then extended by live iterations, and bounded. */

import { binsOf, Bins } from './bins.js';

/** @typedef {(number | null)[]} Column */
/** The columns of one worker, with the names of the API. */
export const COLUMNS = /** @type {const} */ (['local_batch', 'predicted_samples_per_s', 'lower_samples_per_s', 'upper_samples_per_s', 'actual_samples_per_s', 'compute_time_s', 'barrier_wait_s']);
/** The columns of the iteration, with the names of the API. */
const OF_STEP = /** @type {const} */ (['step_time_s', 'predicted_step_time_s', 'even_step_time_s', 'lr_multiplier', 'loss']);

/** Number of points read from the service. Jobs with many workers get fewer. */
export const POINTS = 1000;
/** Limits of points in memory: shares in all iterations, and iterations. Above them, the older half is thinned out. */
const SHARES_MAX = 65_536;
const POINTS_MIN = 96;
const POINTS_MAX = 2_400;

export class History {
  /** Times, in seconds since 1970. @type {number[]} */ at = [];
  /** @type {number[]} */ iterations = [];
  /** The attempt of the latest iteration. */ attempt = 1;
  /** @type {Record<(typeof OF_STEP)[number], Column>} */
  step = { step_time_s: [], predicted_step_time_s: [], even_step_time_s: [], lr_multiplier: [], loss: [] };
  /** @type {Map<string, Record<(typeof COLUMNS)[number], Column>>} */
  workers = new Map();
  /** Over all workers: samples and waiting. Cached, because charts of many workers use them in every frame. */
  all = { batch: /** @type {number[]} */ ([]), wait: /** @type {Column} */ ([]) };
  /** The latest live iteration. @type {any} */ latest = null;
  #version = 0;
  /** @type {Map<number, { version: number, bins: Bins }>} */ #bins = new Map();

  /** @param {number | null} spanS age in seconds above which points are removed; null to keep all */
  constructor(spanS) {
    this.spanS = spanS;
  }

  /** A history from the service's response. @param {any} view @param {number | null} spanS */
  static of(view, spanS) {
    const history = new History(spanS);
    history.at = view.at_unix_ms.map((/** @type {number} */ ms) => ms / 1000);
    history.iterations = view.iterations;
    history.attempt = view.attempts.at(-1) ?? 1;
    for (const name of OF_STEP) history.step[name] = view[name];
    for (const { worker, ...columns } of view.workers) history.workers.set(worker, columns);
    history.#rise();
    history.at.forEach((_, index) => history.#sum(index));
    return history;
  }

  /** The points in at most this number of bins of equal time. @param {number} most */
  bins(most) {
    const known = this.#bins.get(most);
    if (known?.version === this.#version) return known.bins;
    const bins = binsOf(this.at, most);
    this.#bins.set(most, { version: this.#version, bins });
    return bins;
  }

  /** Makes times non-decreasing, which charts require. */
  #rise() {
    for (let index = 1; index < this.at.length; index++) this.at[index] = Math.max(this.at[index], this.at[index - 1] + 1e-4);
  }

  /** Adds a live iteration, or replaces a known one. @param {any} step */
  append(step) {
    // A run that started again replaces the iterations from the one that it returned to.
    if (step.attempt > this.attempt) this.#keep((index) => this.iterations[index] < step.iteration);
    this.attempt = step.attempt;
    const last = this.iterations.length - 1;
    const at = Math.max(step.at_unix_ms / 1000, (this.at[last] ?? 0) + 1e-4);
    this.latest = step;
    this.#version++;
    // The history has iterations that were allocated earlier and are reported only now. If it is thinned out, some are
    // missing.
    const known = this.iterations.lastIndexOf(step.iteration);
    if (known >= 0) return this.#write(known, step);
    if (last >= 0 && step.iteration < this.iterations[last] && step.iteration > this.iterations[0]) return;
    this.at.push(at);
    this.iterations.push(step.iteration);
    for (const name of OF_STEP) this.step[name].push(null);
    for (const columns of this.workers.values()) for (const name of COLUMNS) columns[name].push(null);
    this.#write(last + 1, step);
    this.#bound(at);
  }

  /** @param {number} index @param {any} step */
  #write(index, step) {
    for (const name of OF_STEP) this.step[name][index] = step[name] ?? null;
    for (const worker of step.workers) {
      const columns = this.workers.get(worker.worker) ?? this.#join(worker.worker);
      for (const name of COLUMNS) columns[name][index] = worker[name] ?? null;
    }
    this.#sum(index);
  }

  /** @param {number} index */
  #sum(index) {
    const { all } = this;
    let [batch, waited, waits] = [0, 0, 0];
    for (const columns of this.workers.values()) {
      batch += columns.local_batch[index] ?? 0;
      const wait = columns.barrier_wait_s[index];
      if (wait != null) [waited, waits] = [waited + wait, waits + 1];
    }
    all.batch[index] = batch;
    all.wait[index] = waits ? waited / waits : null;
  }

  /** @param {string} worker */
  #join(worker) {
    const columns = /** @type {any} */ (Object.fromEntries(COLUMNS.map((name) => [name, new Array(this.at.length).fill(null)])));
    this.workers.set(worker, columns);
    return columns;
  }

  /** @param {number} now */
  #bound(now) {
    const { spanS } = this;
    const old = spanS == null ? 0 : this.at.findIndex((at) => at >= now - spanS);
    // Checked only from time to time: moving every column costs more than drawing a few points beyond the span.
    if (old > 32) this.#keep((index) => index >= old);
    const half = this.at.length / 2;
    const most = Math.min(POINTS_MAX, Math.max(POINTS_MIN, SHARES_MAX / Math.max(1, this.workers.size)));
    if (this.at.length > most) this.#keep((index) => index >= half || index % 2 === 0);
  }

  /** @param {(index: number) => boolean} kept */
  #keep(kept) {
    const only = (/** @type {any[]} */ column) => column.filter((_, index) => kept(index));
    this.at = only(this.at);
    this.iterations = only(this.iterations);
    this.all = /** @type {any} */ (Object.fromEntries(Object.entries(this.all).map(([name, column]) => [name, only(column)])));
    for (const name of OF_STEP) this.step[name] = only(this.step[name]);
    for (const columns of this.workers.values()) for (const name of COLUMNS) columns[name] = only(columns[name]);
  }

  /** Whether any iteration has a loss. */
  get hasLoss() {
    return this.step.loss.some((value) => value != null);
  }

  /** Position of the latest reported iteration; -1 before the first. */
  get reported() {
    return this.step.step_time_s.findLastIndex((value) => value != null);
  }

  /** The latest value of a worker's column. @param {string} worker @param {(typeof COLUMNS)[number]} name @param {number} [back] number of points in which it is sought; workers that left have none in the latest @returns {number | null} */
  last(worker, name, back = 5) {
    const column = this.workers.get(worker)?.[name] ?? [];
    for (let index = column.length - 1; index >= Math.max(0, column.length - back); index--) if (column[index] != null) return column[index];
    return null;
  }

  /** The mean relative distance of a worker's actual from its expected speed. @param {string} worker */
  error(worker) {
    const columns = this.workers.get(worker);
    const errors = (columns?.actual_samples_per_s ?? []).flatMap((actual, index) => {
      const expected = columns?.predicted_samples_per_s[index];
      return actual != null && expected ? Math.abs(actual / expected - 1) : [];
    });
    return errors.reduce((sum, error) => sum + error, 0) / (errors.length || 1);
  }
}
