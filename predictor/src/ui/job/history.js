/** What is remembered of a job's iterations, in columns, for charts: read once, then grown by live steps, and bounded. */

/** @typedef {(number | null)[]} Column */
/** The columns of one worker, named as on the wire. */
export const COLUMNS = /** @type {const} */ (['local_batch', 'predicted_samples_per_s', 'lower_samples_per_s', 'upper_samples_per_s', 'actual_samples_per_s', 'compute_time_s', 'barrier_wait_s']);
/** The columns of the step, named as on the wire. */
const OF_STEP = /** @type {const} */ (['step_time_s', 'predicted_step_time_s', 'even_step_time_s', 'lr_multiplier']);

/** Points that are read from the service. */
export const POINTS = 600;
/** Points that are kept; beyond this the older half is thinned. */
const POINTS_MAX = 900;

export class History {
  /** Moments, in seconds since 1970. @type {number[]} */ at = [];
  /** @type {number[]} */ iterations = [];
  /** @type {Record<(typeof OF_STEP)[number], Column>} */
  step = { step_time_s: [], predicted_step_time_s: [], even_step_time_s: [], lr_multiplier: [] };
  /** @type {Map<string, Record<(typeof COLUMNS)[number], Column>>} */
  workers = new Map();
  /** Over all workers: samples given, and the slowest and the fastest speed. Kept, as charts of many workers need them in every frame. */
  all = { batch: /** @type {number[]} */ ([]), slowest: /** @type {Column} */ ([]), fastest: /** @type {Column} */ ([]) };
  /** The latest live step. @type {any} */ latest = null;

  /** @param {number} spanS what is older, in seconds, is let go */
  constructor(spanS) {
    this.spanS = spanS;
  }

  /** A history as the service tells it. @param {any} view @param {number} spanS */
  static of(view, spanS) {
    const history = new History(spanS);
    history.at = view.at_unix_ms.map((/** @type {number} */ ms) => ms / 1000);
    history.iterations = view.iterations;
    for (const name of OF_STEP) history.step[name] = view[name];
    for (const { worker, ...columns } of view.workers) history.workers.set(worker, columns);
    history.#rise();
    history.at.forEach((_, index) => history.#sum(index));
    return history;
  }

  /** Moments that do not go back: charts need them so. */
  #rise() {
    for (let index = 1; index < this.at.length; index++) this.at[index] = Math.max(this.at[index], this.at[index - 1] + 1e-4);
  }

  /** A live step; one that is known already takes its place. @param {any} step */
  append(step) {
    const last = this.iterations.length - 1;
    const at = Math.max(step.at_unix_ms / 1000, (this.at[last] ?? 0) + 1e-4);
    this.latest = step;
    // The history has iterations that were answered, and are reported only now; where it is thinned, not all of them.
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
    let batch = 0;
    /** @type {number | null} */ let slowest = null;
    /** @type {number | null} */ let fastest = null;
    for (const columns of this.workers.values()) {
      batch += columns.local_batch[index] ?? 0;
      const speed = columns.actual_samples_per_s[index];
      if (speed == null) continue;
      slowest = slowest == null || speed < slowest ? speed : slowest;
      fastest = fastest == null || speed > fastest ? speed : fastest;
    }
    this.all.batch[index] = batch;
    this.all.slowest[index] = slowest;
    this.all.fastest[index] = fastest;
  }

  /** @param {string} worker */
  #join(worker) {
    const columns = /** @type {any} */ (Object.fromEntries(COLUMNS.map((name) => [name, new Array(this.at.length).fill(null)])));
    this.workers.set(worker, columns);
    return columns;
  }

  /** @param {number} now */
  #bound(now) {
    const old = this.at.findIndex((at) => at >= now - this.spanS);
    // Looked at only now and then: moving every column costs more than a few points beyond the span.
    if (old > 32) this.#keep((index) => index >= old);
    const half = this.at.length / 2;
    if (this.at.length > POINTS_MAX) this.#keep((index) => index >= half || index % 2 === 0);
  }

  /** @param {(index: number) => boolean} kept */
  #keep(kept) {
    const only = (/** @type {any[]} */ column) => column.filter((_, index) => kept(index));
    this.at = only(this.at);
    this.iterations = only(this.iterations);
    this.all = { batch: only(this.all.batch), slowest: only(this.all.slowest), fastest: only(this.all.fastest) };
    for (const name of OF_STEP) this.step[name] = only(this.step[name]);
    for (const columns of this.workers.values()) for (const name of COLUMNS) columns[name] = only(columns[name]);
  }

  /** The place of the latest iteration that was reported; -1 before the first. */
  get reported() {
    return this.step.step_time_s.findLastIndex((value) => value != null);
  }

  /** The latest value of a worker's column. @param {string} worker @param {(typeof COLUMNS)[number]} name @returns {number | null} */
  last(worker, name) {
    const column = this.workers.get(worker)?.[name] ?? [];
    for (let index = column.length - 1; index >= Math.max(0, column.length - 5); index--) if (column[index] != null) return column[index];
    return null;
  }
}
